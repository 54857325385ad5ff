"""What the live service asks of the machine never holds it up."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from pipeline import app
from pipeline.run_directory import RunDirectory


@pytest.mark.anyio
async def test_a_file_system_that_does_not_answer_is_a_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount that hangs neither ends the service as it starts nor holds it: it is looked at as seldom as a network."""
    (tmp_path / "logs").mkdir()
    run, answered = RunDirectory(tmp_path), Event()
    assert await app._is_on_network(run) is (app.network_filesystem(tmp_path) is not None)
    monkeypatch.setattr(app, "BEHIND_S", 0.1)
    monkeypatch.setattr(app, "network_filesystem", lambda _: answered.wait())
    assert await app._is_on_network(run)
    answered.set()
