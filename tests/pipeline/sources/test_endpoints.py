"""Which pages are polled: those that the run's configs name, and those that runwatch's does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio
import pytest
from aiohttp import web

from pipeline.events import Event, Sample, SourceState
from pipeline.run_directory import RunDirectory
from pipeline.sources import endpoints
from pipeline.sources.endpoints import Endpoints

if TYPE_CHECKING:
    from pathlib import Path


async def _page(_request: web.Request) -> web.Response:
    return web.Response(text="vllm_router_active_workers 1\n")


pytestmark = pytest.mark.anyio


async def test_a_page_that_only_our_config_names_is_polled(tmp_path: Path) -> None:
    """A router is in no config of the run."""
    app = web.Application()
    app.router.add_get("/metrics", _page)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "localhost", 0).start()
    url = f"http://localhost:{runner.addresses[0][1]}/metrics"
    send, receive = anyio.create_memory_object_stream[Event](math.inf)
    async with send, receive, anyio.create_task_group() as tasks:
        tasks.start_soon(Endpoints(RunDirectory(tmp_path), [url]).run, send.send)
        with anyio.fail_after(10):
            while not isinstance(event := await receive.receive(), Sample):
                pass
        tasks.cancel_scope.cancel()
    await runner.cleanup()
    assert (event.endpoint, event.name) == (url, "vllm_router_active_workers")


async def test_without_a_page_it_says_so_until_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose configs name no page is not taken for one that is not seen, whatever was said before."""
    monkeypatch.setattr(endpoints, "LOOK_AGAIN_S", 0.05)
    send, receive = anyio.create_memory_object_stream[Event](math.inf)
    async with send, receive, anyio.create_task_group() as tasks:
        tasks.start_soon(Endpoints(RunDirectory(tmp_path)).run, send.send)
        with anyio.fail_after(10):
            first = await receive.receive()
            (tmp_path / "configs").mkdir()
            (tmp_path / "configs/trainer.json").write_text('{"metrics_server": {"port": 1}}', "utf-8")
            second = await receive.receive()
        tasks.cancel_scope.cancel()
    assert isinstance(first, SourceState)
    assert isinstance(second, SourceState)
    assert (first.name, first.state, first.reason) == ("metrics", "absent", "the run's configs name no page")
    assert (second.name, second.state) == ("metrics", "seeing")
