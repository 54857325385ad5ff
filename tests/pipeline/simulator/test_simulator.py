"""The simulated run: like a real one, the same for the same plan, and with the fault that was asked for."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.simulator.__main__ import main
from pipeline.simulator.attempts import simulate
from pipeline.simulator.disk import write_run
from pipeline.simulator.plan import Era, Fault, Plan
from pipeline.simulator.timeline import course, schedule

CHECKOUT = Path(__file__).parents[3]
FAULTS = list(Fault)
CLOCK = re.compile(r"(?m)^(?:\[trainer0\]:|\(\w+ pid=\d+\) [A-Z]+ \d\d-\d\d |[WE]\d{4} )?(\d\d:\d\d:\d\d)[. ]")

plans = st.builds(
    Plan,
    fault=st.sampled_from(FAULTS),
    era=st.sampled_from(Era),
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 8),
    batch_size=st.sampled_from([8, 16]),
)


class Run:
    """A run that was written to disk."""

    def __init__(self, out: Path, plan: Plan) -> None:
        write_run(plan, out)
        self.out, self.plan, self.directory = out, plan, out / "run"

    def log(self, path: Path | str) -> str:
        """Return a log of the attempt without its colours."""
        text = (self.directory / "logs/latest" / path).read_bytes().decode()
        return re.sub(r"\x1b\[[0-9;]*m", "", text)

    @property
    def attempts(self) -> int:
        """How often the run was launched."""
        return 2 if self.plan.fault is Fault.SECOND_ATTEMPT else 1

    def logs(self) -> list[Path]:
        """Return the attempt's logs, relative to it."""
        attempt = self.directory / "logs/latest"
        return [path.relative_to(attempt) for path in attempt.rglob("*.log")]

    def rows(self, path: str) -> list[dict[str, Any]]:
        """Return the JSON lines of a file."""
        return [json.loads(line) for line in (self.out / path).read_text("utf-8").splitlines()]

    def rollouts(self, subset: str) -> list[dict[str, Any]]:
        """Return the rollouts of all steps."""
        files = sorted(self.directory.glob(f"rollouts/step_*/train/{subset}/traces.jsonl"))
        return [row for file in files for row in self.rows(str(file.relative_to(self.out)))]

    def recorded(self, type_: str, **fields: object) -> list[dict[str, Any]]:
        """Return the events of the recording that are of a type and have these fields."""
        rows = [row for row in self.rows("recording.jsonl") if row["type"] == type_]
        return [row for row in rows if fields.items() <= row.items()]

    def terminal(self) -> str:
        """Return what the launcher said."""
        return "\n".join(row["text"] for row in self.recorded("host", origin="launcher"))

    def trained(self) -> list[int]:
        """Return the steps that the trainer's log names as done."""
        return [int(number) for number in re.findall(r"SUCCESS Step (\d+) ", self.log("trainer.log"))]


def digest(folder: Path) -> dict[str, str]:
    """Return a hash of each file below *folder*."""
    files = [path for path in folder.rglob("*") if path.is_file() and "latest" not in path.parts]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module", params=FAULTS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Write a run with each fault in turn; tests only read it."""
    return Run(tmp_path_factory.mktemp("run") / "out", Plan(fault=request.param, patience_s=400.0))


def made(tmp_path: Path, fault: Fault, seed: int = 1) -> Run:
    """Write a run with one fault."""
    return Run(tmp_path / f"{fault}-{seed}", Plan(fault=fault, seed=seed))


def test_same_plan_gives_the_same_run(run: Run, tmp_path: Path) -> None:
    """Two runs of one plan do not differ in a byte."""
    assert digest(Run(tmp_path / "again", run.plan).out) == digest(run.out)


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    """Runs of two seeds share the fault, and neither rollouts nor times."""
    first, second = (made(tmp_path, Fault.CUDA_OOM, seed) for seed in (1, 2))
    assert {row["id"] for row in first.rollouts("all")}.isdisjoint(row["id"] for row in second.rollouts("all"))
    assert first.log("orchestrator.log") != second.log("orchestrator.log")


def test_a_log_is_as_old_as_its_last_line(run: Run) -> None:
    """The date of a log's lines can be told from when the file was last modified."""
    for path in run.logs():
        times = CLOCK.findall(run.log(path))
        modified = datetime.fromtimestamp((run.directory / "logs/latest" / path).stat().st_mtime, UTC)
        if times:
            last = datetime.combine(modified.date(), datetime.strptime(times[-1], "%H:%M:%S").time(), UTC)  # noqa: DTZ007 (only its time of day is used)
            assert timedelta(0) <= modified - last < timedelta(seconds=20), path


def test_a_log_never_goes_back_in_time(run: Run) -> None:
    """The lines of a log are in the order in which they were written."""
    for path in run.logs():
        times = CLOCK.findall(run.log(path))
        assert times == sorted(times), path


def test_recording_is_in_order_of_time(run: Run) -> None:
    """The recording is ordered by time, in UTC with milliseconds, and ends with a tick."""
    rows = run.rows("recording.jsonl")
    times = [row["time"] for row in rows]
    assert times == sorted(times)
    assert all(re.fullmatch(r"2026-08-19T1[23]:\d\d:\d\d\.\d{3}Z", time) for time in times)
    assert rows[-1]["type"] == "tick"


def test_latest_points_at_the_attempt(run: Run) -> None:
    """`logs/latest` is a relative link, as prime-rl makes it."""
    assert (run.directory / "logs/latest").readlink() == Path(f"attempt_{run.attempts}")


def test_a_step_is_logged_and_measured(run: Run) -> None:
    """Each trained step has one line in the log and five rows of metrics, and none of them is missing."""
    rows = [row for row in run.rows("run/metrics.jsonl") if not any(key.startswith("train/") for key in row)]
    first = run.trained()[0]
    assert run.trained() == list(range(first, first + len(run.trained())))
    assert (first > 1) is (run.attempts > 1)
    assert [row["step"] for row in rows][-5 * len(run.trained()) :] == [
        step for step in run.trained() for _ in range(5)
    ]


def test_batches_are_full(run: Run) -> None:
    """What was trained on is what arrived without an error, as many rollouts a step as the config says."""
    effective = run.rollouts("effective")
    good = {row["id"] for row in run.rollouts("all") if row["ok"]}
    assert {row["id"] for row in effective} <= good
    sizes = {}
    for row in effective:
        step = row["run"]["work"]["step"]
        sizes[step] = sizes.get(step, 0) + 1
    assert set(sizes.values()) == {run.plan.batch_size}
    assert set(run.trained()) <= set(sizes)


def test_processes_end_once(run: Run) -> None:
    """A process is seen running until it exits, and not after."""
    gone = set()
    for row in run.recorded("process"):
        assert row["pid"] not in gone
        if row["state"] == "exited":
            gone.add(row["pid"])


def test_a_run_without_a_fault_finishes(tmp_path: Path) -> None:
    """Every step is trained, everybody says so, and nobody reports an error."""
    run = made(tmp_path, Fault.NONE)
    assert run.trained() == list(range(1, run.plan.steps + 1))
    assert "RL trainer finished!" in run.log("trainer.log")
    assert "Orchestrator finished." in run.log("orchestrator.log")
    assert "Training finished!" in run.terminal()
    assert run.recorded("process", role="launcher", exit_code=0)
    assert not [path for path in run.logs() if re.search(r"ERROR|Traceback", run.log(path))]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cuda_oom_kills_a_rank(tmp_path: Path, seed: int) -> None:
    """One rank says why in its own log, torchrun names it, and the launcher ends the rest."""
    run = made(tmp_path, Fault.CUDA_OOM, seed)
    (failed,) = re.findall(r"failed \(exitcode: 1\) local_rank: (\d)", run.log("trainer.log"))
    guilty = [path for path in run.logs() if "torch.OutOfMemoryError: CUDA out of memory" in run.log(path)]
    assert {path.parts[-2] for path in guilty if path.name == "stdout.log"} == {failed}
    assert (Path("trainer.log") in guilty) is (failed == "0")
    assert "ChildFailedError" in run.log("trainer.log")
    assert "Error: Trainer failed with exit code 1" in run.terminal()
    assert run.trained()[-1] == run.plan.steps
    assert [row["exit_code"] for row in run.recorded("process", role="trainer", state="exited")] == [1, -15]


def test_a_hang_is_silent(tmp_path: Path) -> None:
    """Nobody exits and nobody complains: only the orchestrator's heartbeat goes on."""
    run = made(tmp_path, Fault.HANG)
    assert not run.recorded("process", state="exited")
    assert not [path for path in run.logs() if "ERROR" in run.log(path)]
    last = run.log("orchestrator.log").splitlines()[-30:]
    assert len({line.split("INFO")[-1] for line in last}) == 1
    assert "; 0 inflight episodes" in last[-1]
    assert not (run.directory / f"broadcasts/step_{run.plan.steps + 1}").exists()
    assert f"until the trainer publishes policy v{run.plan.steps + 1}" in run.log("orchestrator.log")


def test_env_errors_stay_in_one_environment(tmp_path: Path) -> None:
    """A large share of one environment's rollouts fails; training goes on, and more slowly."""
    run = made(tmp_path, Fault.ENV_ERRORS)
    late = [row for row in run.rollouts("all") if row["run"]["work"]["step"] > run.plan.steps + 2]
    shares = {
        env: sum(not row["ok"] for row in late if row["env"]["name"] == env)
        / sum(row["env"]["name"] == env for row in late)
        for env in ("reverse-text", "word-sort")
    }
    assert shares["word-sort"] > 0.6
    assert shares["reverse-text"] < 0.1
    assert run.trained()[-1] > run.plan.steps + 5
    assert not run.recorded("process", state="exited")


def test_an_engine_death_starves_the_run(tmp_path: Path) -> None:
    """The engine dies, the server ends quietly, every rollout fails, and at last the orchestrator gives up."""
    run = made(tmp_path, Fault.ENGINE_DEATH)
    assert "EngineDeadError" in run.log("inference.log")
    assert run.recorded("process", role="inference", title="PRIME-RL::Inference", exit_code=0)
    assert run.log("orchestrator.log").count("ProviderError") > 100
    assert "(consecutive zero-output batch equivalents: 10/10)" in run.log("orchestrator.log")
    assert "Error: Orchestrator failed with exit code 1" in run.terminal()
    assert "got signal: 15" in run.log("trainer.log")
    assert run.recorded("scrape_failed")


def test_one_environment_of_three_fails(tmp_path: Path) -> None:
    """The code of one environment raises, and its rollouts alone fail."""
    run = made(tmp_path, Fault.ONE_ENV_OF_THREE)
    late = [row for row in run.rollouts("all") if row["run"]["work"]["step"] > run.plan.steps + 2]
    failed = [row["env"]["name"] for row in late if row["traces"][0]["errors"]]
    assert {row["env"]["name"] for row in late} == {"reverse-text", "word-sort", "ascii-tree"}
    assert failed.count("word-sort") > 0.9 * len(failed) > 50


def test_a_killed_env_worker_says_nothing(tmp_path: Path) -> None:
    """Rollouts of an environment start, never end, and are in flight for ever; no log names the worker."""
    run = made(tmp_path, Fault.ENV_WORKER_KILLED)
    log = run.log("envs/train/word-sort.log")
    assert log.count("rollout start") - log.count("rollout done") == 12
    assert not [path for path in run.logs() if "ERROR" in run.log(path)]
    last = re.findall(r"Train batch .*", run.log("orchestrator.log"))[-1]
    assert re.search(r"word-sort=0\); .*word-sort=12\)", last)
    (death,) = run.recorded("process", state="zombie")
    assert (death["role"], death["exit_code"]) == ("env_worker", -9)


def test_entropy_sinks_slowly(tmp_path: Path) -> None:
    """The entropy falls from step to step after the fault, and not at once."""
    run = made(tmp_path, Fault.ENTROPY_COLLAPSE)
    entropies = [row["entropy/all/mean"] for row in run.rows("run/metrics.jsonl") if "entropy/all/mean" in row]
    before, after = entropies[run.plan.steps - 1], entropies[run.plan.steps :]
    assert after[:8] == sorted(after[:8], reverse=True)
    assert before > after[0] > before / 2
    assert after[12] < 0.02


def test_a_disk_fills_up(tmp_path: Path) -> None:
    """The rows of metrics and the recording tell of less and less space."""
    run = made(tmp_path, Fault.DISK_FILLING)
    key = "system/ckpt_disk_free_ratio"
    ratios = [row[key] for row in run.rows("run/metrics.jsonl") if key in row]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[run.plan.steps - 1] > 0.4
    assert ratios[-1] < 0.01
    assert run.recorded("disk")[-1]["free_bytes"] < 0.01 * run.recorded("disk")[-1]["total_bytes"]


@pytest.mark.parametrize(("steps", "resumed_from"), [(3, 0), (6, 5), (12, 10)])
def test_a_second_attempt_goes_on_from_a_checkpoint(tmp_path: Path, steps: int, resumed_from: int) -> None:
    """What the first attempt did after its last whole checkpoint is done again, and the run finishes."""
    run = Run(tmp_path / "out", Plan(fault=Fault.SECOND_ATTEMPT, steps=steps))
    first = (run.directory / "logs/attempt_1/trainer.log").read_text("utf-8")
    config = json.loads((run.directory / "configs/orchestrator.json").read_text("utf-8"))
    assert "ChildFailedError" in first
    assert (config["resume"] or {"step": 0})["step"] == resumed_from
    assert run.trained() == list(range(resumed_from + 1, steps + 6))
    assert "RL trainer finished!" in run.log("trainer.log")
    launchers = run.recorded("process", role="launcher", state="exited")
    assert [row["exit_code"] for row in launchers] == [1, 0]


def test_records_are_of_their_era(tmp_path: Path) -> None:
    """A line is a trace or an episode, and the orchestrator speaks of what it is."""
    runs = {era: Run(tmp_path / era, Plan(fault=Fault.ENGINE_DEATH, era=era, steps=2)) for era in Era}
    traces, episodes = (runs[era].rollouts("all") for era in (Era.TRACE, Era.EPISODE))
    assert [row["info"]["episode_id"] for row in traces] == [row["id"] for row in episodes]
    assert all("nodes" in row and "traces" not in row for row in traces)
    assert "Rollout failed in group" in runs[Era.TRACE].log("orchestrator.log")
    assert "Cancelled" not in runs[Era.TRACE].log("orchestrator.log")
    assert "Trace failed in group" in runs[Era.EPISODE].log("orchestrator.log")


def test_command_lists_the_faults(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` shows each fault in a line of a terminal's width."""
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == FAULTS
    assert max(map(len, lines)) <= 110


@given(plan=plans)
def test_every_plan_keeps_the_order_of_the_pipeline(plan: Plan) -> None:
    """A batch fills, ships, is trained, and its policy is published: in this order, and never two ahead."""
    fate = course(plan)
    steps = schedule(plan, fate, plan.max_steps)
    for step in steps:
        times = [step.collects_s, step.full_s, step.ships_s, step.trains_s, step.publishes_s, step.joins_s, step.done_s]
        assert times == sorted(times)
    for earlier, later in zip(steps, steps[2:], strict=False):
        assert later.ships_s >= earlier.joins_s
    assert sum(step.done_s < inf for step in steps) >= plan.steps


@settings(max_examples=25)
@given(plan=plans)
def test_every_plan_ends(plan: Plan) -> None:
    """Nothing is written before the launch or after the end, and no rollout ends before it began."""
    begins_s = 0.0
    for attempt in simulate(plan):
        assert all(begins_s <= change.at_s <= attempt.ends_s < inf for change in attempt.script.changes())
        assert all(rollout.began_s <= rollout.ended_s for rollout in attempt.rollouts)
        begins_s = attempt.ends_s


def test_command_writes_a_run(tmp_path: Path) -> None:
    """The command writes what the library writes."""
    assert main([str(tmp_path / "out"), "--fault", "cuda-oom", "--seed", "7", "--steps", "2", "--batch-size", "8"]) == 0
    plan = Plan(fault=Fault.CUDA_OOM, seed=7, steps=2, batch_size=8)
    assert digest(tmp_path / "out") == digest(Run(tmp_path / "again", plan).out)


@pytest.mark.parametrize(
    ("arguments", "complaint"), [(["--steps", "0"], "at least 1"), (["--batch-size", "12"], "multiple of 8")]
)
def test_command_refuses_what_no_run_could_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    """A plan that makes no sense ends with status 2 and one line, and writes nothing."""
    assert main([str(tmp_path / "out"), *arguments]) == 2
    assert complaint in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_command_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that holds a run already is left alone."""
    assert main([str(tmp_path), "--steps", "1"]) == 0
    before = (tmp_path / "recording.jsonl").read_bytes()
    assert main([str(tmp_path), "--steps", "1", "--seed", "2"]) == 2
    assert (tmp_path / "recording.jsonl").read_bytes() == before
    assert "run" in capsys.readouterr().err


def test_example_is_what_the_simulator_writes(tmp_path: Path) -> None:
    """The example that is checked in was made by the command that its README names."""
    example = CHECKOUT / "example"
    (command,) = re.findall(r"python -m pipeline\.simulator example (.*)", (example / "README.md").read_text("utf-8"))
    assert main([str(tmp_path / "out"), *command.split()]) == 0
    assert digest(example / "run") == digest(tmp_path / "out/run")
    recording = (example / "recording.jsonl").read_bytes()
    assert recording == (tmp_path / "out/recording.jsonl").read_bytes()
