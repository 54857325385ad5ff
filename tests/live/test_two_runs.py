"""One host, several runs; one run, one watcher; and an end within seconds, whatever hangs."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread

import pytest

from pipeline.alerts import CheckIn
from pipeline.events import ProcessState
from pipeline.journal_file import read_recording
from pipeline.simulator.attempts import simulate
from pipeline.simulator.files import apply
from pipeline.simulator.plan import Fault, Plan
from tests.live.running import Site, end, entries_of, receiving, wait_until

ENDS_S = 5.0
WRITTEN_S = 300.0


def written(site: Site, port: int = 8100) -> Path:
    """Write a run that is going on."""
    plan = Plan(fault=Fault.NONE, steps=30, batch_size=8, speed=1000.0, start=datetime.now(UTC), engine_port=port)
    run = site.output / plan.name
    for change in simulate(plan)[0].script.changes():
        if change.at_s <= WRITTEN_S:
            apply(change, run)
    return run


def processes(site: Site) -> set[int]:
    """Return the ids of the processes that were seen."""
    return {event.pid for event in read_recording(site.journal()) if isinstance(event, ProcessState)}


@pytest.mark.timeout(90)
def test_each_sees_only_its_own_processes(tmp_path: Path) -> None:
    """Two runs on one host have processes of the same titles; neither watcher sees one of the other's."""
    sites = [Site(tmp_path / name) for name in ("one", "other")]
    try:
        for site in sites:
            site.simulate("--duration", 60, "--processes")
        for site in sites:
            site.watch()
        for site in sites:
            wait_until(lambda s=site: list(s.root.glob("state/runwatch/*/journal.db")), 20, "it never began")
        time.sleep(12)  # both have scanned a few times
        one, other = map(processes, sites)
        assert len(one) >= 5
        assert len(other) >= 5
        assert not one & other
    finally:
        for site in sites:
            site.close()


@pytest.mark.timeout(60)
def test_a_second_watcher_of_a_run_refuses(site: Site) -> None:
    """It exits with 1 and says which process watches."""
    written(site)
    first = site.watch()
    wait_until(lambda: "watch.began" in site.log, 20, site.log)
    second = site.ask("run", site.run)
    assert second.returncode == 1
    assert f"pid {first.pid} " in second.stderr.decode()
    assert end(first)[0] == 0


@contextmanager
def hanging_page() -> Iterator[int]:
    """Give the port of something that takes connections and never answers."""
    done = Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        taken: list[socket.socket] = []

        def take() -> None:
            while not done.is_set():
                try:
                    taken.append(server.accept()[0])
                except TimeoutError:
                    continue

        thread = Thread(target=take, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            done.set()
            thread.join()
            for connection in taken:
                connection.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_within_seconds_whatever_hangs(site: Site, number: signal.Signals) -> None:
    """A sink that never answers, a page that hangs and a pipe in place of a log do not delay the end: status 0."""
    with receiving(answers=False) as silent, hanging_page() as port:
        url_file = site.root / "team.url"
        url_file.write_text(silent.url)
        site.configure(
            f'[[sink]]\ntype = "apprise"\nname = "team"\nurl_file = "{url_file}"\n'
            '[[rule]]\nname = "all"\nfailure_mode = "nccl-error"\nsummary = "all"\ncomponent = "trainer"\n'
            'on = { log = { pattern = "there is trouble" } }\n'
            'escalate = [{ severity = "critical", immediately = true }]\n'
        )
        run = written(site, port=port)
        log = run / "logs" / "attempt_1" / "trainer.log"
        with log.open("a") as file:
            file.write(f"{datetime.now(UTC):%H:%M:%S}   ERROR there is trouble\n")
        os.mkfifo(log.with_name("pipe.log"))
        program = site.watch()
        wait_until(lambda: silent.ids, 40, site.log)
        status, took_s = end(program, number)
    assert status == 0
    assert took_s < ENDS_S


@pytest.mark.timeout(60)
def test_once_makes_one_entry_each_time(site: Site) -> None:
    """Without any config, `--once` exits with 0 after an entry, unless the last one said the same a moment ago."""
    run = written(site)
    for _ in range(2):
        looked = site.ask("run", "--once", run)
        assert looked.returncode == 0, looked.stderr
        decided = [entry.text.rstrip("\n") for entry in site.history() if isinstance(entry, CheckIn)]
        assert entries_of((run / "STATUS.md").read_text()) == decided
    assert len(decided) == len(set(decided)) > 0
