"""The Prometheus poller, against real servers that answer well, badly, or not at all."""

from __future__ import annotations

import gzip
import itertools
import math
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from aiohttp import web
from anyio.abc import SocketAttribute, SocketListener

from pipeline.events import Event, Sample, ScrapeFailed, SourceState
from pipeline.sources.prometheus import BODY_BYTES, SERIES, PrometheusSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from anyio.streams.memory import MemoryObjectReceiveStream

    Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running_created{engine="0",model_name="m"} 1.7e9
vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 9.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1e6
python_info{implementation="CPython"} 1.0
trainer_loss NaN
trainer_step_created 1.7e9
vllm_router_active_workers 1
vllm_router_generate_duration_seconds_bucket{le="1"} 4
"""


@asynccontextmanager
async def serving(answer: Answer, path: str = "/metrics") -> AsyncIterator[str]:
    """Serve *answer* at every path; yield the address of *path*."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "localhost", 0, reuse_port=False)
        await site.start()
        yield f"http://localhost:{runner.addresses[0][1]}{path}"
    finally:
        await runner.cleanup()


def text(page: str) -> Answer:
    """Answer every request with *page*."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=page)

    return answer


@asynccontextmanager
async def polling(*urls: str, interval_s: float = 0.1, timeout_s: float = 0.3) -> AsyncIterator[Events]:
    """Poll *urls* for as long as the block lasts."""
    send, receive = anyio.create_memory_object_stream[Event](math.inf)
    source = PrometheusSource(urls, interval_s, timeout_s)
    async with send, receive, anyio.create_task_group() as tasks:
        tasks.start_soon(source.run, send.send)
        with anyio.fail_after(10):
            yield Events(receive)
        tasks.cancel_scope.cancel()


class Events:
    """What the source emits."""

    def __init__(self, receive: MemoryObjectReceiveStream[Event]) -> None:
        self._receive = receive

    async def next_state(self) -> tuple[str, str]:
        """Return what is next said about seeing, and why."""
        while not isinstance(event := await self._receive.receive(), SourceState):
            pass
        return event.state, event.reason

    async def next_failure(self) -> str:
        """Return the next error; a sample before it is one too."""
        while not isinstance(event := await self._receive.receive(), ScrapeFailed):
            assert not isinstance(event, Sample)
        return event.error

    async def next_samples(self, count: int) -> list[Sample]:
        """Return the next *count* samples."""
        samples: list[Sample] = []
        while len(samples) < count:
            if isinstance(event := await self._receive.receive(), Sample):
                samples.append(event)
        return samples


def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def test_emits_the_wanted_series() -> None:
    """Of a page come the series that rules use, with their labels, and neither buckets nor dates of creation."""
    async with serving(text(PAGE)) as url, polling(url) as events:
        assert await events.next_state() == ("seeing", "")
        samples = await events.next_samples(4)
    assert [(sample.name, sample.labels, sample.value) for sample in samples[:2]] == [
        ("vllm:num_requests_running", {"engine": "0", "model_name": "m"}, 3.0),
        ("vllm:generation_tokens_total", {"engine": "0", "model_name": "m"}, 1e6),
    ]
    assert samples[2].name == "trainer_loss"
    assert math.isnan(samples[2].value)
    assert samples[3].name == "vllm_router_active_workers"
    assert {sample.endpoint for sample in samples} == {url}
    assert len({sample.time for sample in samples}) == 1


@pytest.mark.parametrize(
    ("page", "value"),
    [
        ("vllm:gpu_cache_usage_perc 0.25\n", 0.25),
        ("vllm:gpu_cache_usage_perc 0.25\nvllm:kv_cache_usage_perc 0.5\n", 0.5),
        ("vllm:kv_cache_usage_perc 0.5\n", 0.5),
    ],
    ids=["old", "both", "new"],
)
async def test_the_old_name_of_the_cache_becomes_the_new(page: str, value: float) -> None:
    """Whatever vLLM calls it, the use of the cache has one name, and comes once a page."""
    async with serving(text(page)) as url, polling(url) as events:
        samples = await events.next_samples(2)
    assert [(sample.name, sample.value) for sample in samples] == [("vllm:kv_cache_usage_perc", value)] * 2


async def test_refused_before_the_first_answer_is_absent() -> None:
    """A server that is still starting, or switched off, is not a failure of sight, however long it takes."""
    url = f"http://localhost:{free_port()}/metrics"
    async with polling(url) as events:
        assert await events.next_state() == ("absent", "connection refused")
        assert [await events.next_failure() for _ in range(3)] == ["connection refused"] * 3


async def test_two_failures_after_an_answer_are_blindness() -> None:
    """One failure is a busy engine, two are blindness, and an answer ends it."""
    pages = iter([200, 500, 200, 500, 500, 200])

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text="trainer_step 1\n", status=next(pages, 200))

    async with serving(answer) as url, polling(url) as events:
        assert await events.next_state() == ("seeing", "")
        assert await events.next_state() == ("blind", "answered 500")
        assert await events.next_state() == ("seeing", "")


@asynccontextmanager
async def replying(reply: bytes, times: int) -> AsyncIterator[str]:
    """Send *reply* over the first connections, then close the port; yield the address of a page there."""
    listener = (await anyio.create_tcp_listener(local_host="127.0.0.1")).listeners[0]
    assert isinstance(listener, SocketListener)

    async def serve() -> None:
        async with listener:
            for _ in range(times):
                async with await listener.accept() as client:
                    await client.receive()
                    await client.send(reply)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/metrics"
        tasks.cancel_scope.cancel()


async def test_refused_after_an_answer_is_blindness() -> None:
    """An engine that answered once and is gone is not seen."""
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\ntrainer_step 1\n"
    async with replying(reply, times=1) as url, polling(url) as events:
        assert await events.next_state() == ("seeing", "")
        assert await events.next_state() == ("blind", "connection refused")


@pytest.mark.parametrize(
    "reply",
    [b"\x00\xffgarbage\r\n\r\n", b"\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ntrainer_step 1\n"],
    ids=["no http", "nothing", "torn"],
)
async def test_a_broken_answer_is_a_failure(reply: bytes) -> None:
    """What breaks the protocol is a failure like any other, told in one short line."""
    async with replying(reply, times=9) as url, polling(url) as events:
        error = await events.next_failure()
        assert error.isprintable()
        assert len(error) <= 100
        assert await events.next_state() == ("blind", error)


async def hung(_request: web.Request) -> web.Response:
    """Never answer."""
    await anyio.sleep_forever()
    raise AssertionError


async def drip(request: web.Request) -> web.StreamResponse:
    """Answer a byte at a time, without end."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"#")
        await anyio.sleep(0.02)


async def endless(request: web.Request) -> web.StreamResponse:
    """Answer without end, as fast as it goes."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"# nothing of value\n" * 4096)


async def redirect(request: web.Request) -> web.Response:
    """Send the visitor on to a page that would be fine."""
    if request.path == "/elsewhere/metrics":
        return web.Response(text=PAGE)
    msg = "/elsewhere/metrics"
    raise web.HTTPFound(msg)


async def bomb(_request: web.Request) -> web.Response:
    """Answer with some kilobytes that unfold to more than the limit, though each is a comment."""
    body = gzip.compress(b"# nothing of value\n" * (BODY_BYTES // 8))
    assert len(body) < BODY_BYTES
    return web.Response(body=body, headers={"Content-Encoding": "gzip"})


async def torn(_request: web.Request) -> web.Response:
    """Answer with half of a compressed page."""
    return web.Response(body=gzip.compress(PAGE.encode())[:-20], headers={"Content-Encoding": "gzip"})


async def not_compressed(_request: web.Request) -> web.Response:
    """Answer with text that says it is compressed."""
    return web.Response(body=PAGE.encode(), headers={"Content-Encoding": "gzip"})


async def brotli(_request: web.Request) -> web.Response:
    """Answer in an encoding that nobody asked for."""
    return web.Response(body=b"x", headers={"Content-Encoding": "br"})


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (hung, "no whole answer in 0.3 s"),
        (drip, "no whole answer in 0.3 s"),
        (endless, "longer than 8 MiB"),
        (redirect, "answered 302"),
        (bomb, "longer than 8 MiB"),
        (torn, "compressed body ends too early"),
        (not_compressed, "error: Error -3 while decompressing data: incorrect header check"),
        (brotli, "unknown content encoding br"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_a_bad_answer_is_a_failure(answer: Answer, error: str) -> None:
    """Whatever a server does, the scrape ends in time and says why; the second time in a row it is blindness."""
    timeout_s = 0.3 if error.startswith("no ") else 5
    async with serving(answer) as url, polling(url, timeout_s=timeout_s) as events:
        assert await events.next_failure() == error
        assert await events.next_state() == ("blind", error)


@pytest.mark.parametrize(
    "page", ["<html>Bad\x1b[31m gateway</html>" * 20, '{"a": 1}', "\0\ud7ff\n", "trainer_loss x\n"]
)
async def test_what_is_no_metrics_page_is_a_failure(page: str) -> None:
    """Another kind of page is a failure, and the error quotes little of it, without control codes."""
    async with serving(text(page)) as url, polling(url) as events:
        error = await events.next_failure()
    assert len(error) <= 100
    assert error.isprintable()


async def test_too_many_series_are_a_failure() -> None:
    """A page with more wanted series than the limit is refused whole."""
    page = "".join(f'trainer_loss{{rank="{rank}"}} 1\n' for rank in range(SERIES + 1))
    async with serving(text(page)) as url, polling(url) as events:
        assert str(SERIES) in await events.next_failure()


async def test_a_compressed_page_is_read() -> None:
    """A compressed page within the limit is as good as any."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=gzip.compress(PAGE.encode()), headers={"Content-Encoding": "gzip"})

    async with serving(answer) as url, polling(url) as events:
        assert len(await events.next_samples(4)) == 4


async def test_a_hung_endpoint_delays_no_other() -> None:
    """While one page hangs, the others are read at every interval."""
    async with serving(hung) as slow, serving(text("trainer_step 1\n")) as fast:
        began_at = time.monotonic()
        async with polling(slow, fast, timeout_s=8) as events:
            samples = await events.next_samples(5)
        assert time.monotonic() - began_at < 5
    assert {sample.endpoint for sample in samples} == {fast}


async def test_pages_are_spread_over_the_interval() -> None:
    """After the first look the pages are not asked for all at once."""
    asked: list[tuple[str, float]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path, time.monotonic()))
        return web.Response(text="trainer_step 1\n")

    async with serving(answer, "") as base:
        urls = [f"{base}/{number}/metrics" for number in range(4)]
        async with polling(*urls, interval_s=0.8) as events:
            await events.next_samples(12)
    times = sorted(at for _, at in asked[-4:])
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) > 0.05


@pytest.mark.parametrize(
    "path",
    ["/pause", "/update_weights?x=/metrics", "/health", ""],
)
async def test_nothing_but_a_metrics_page_is_ever_asked_for(path: str) -> None:
    """An address of another kind is a failure, and no request goes out: an engine can be commanded by one."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(text=PAGE)

    async with serving(answer, path) as url, polling(url) as events:
        assert await events.next_failure() == "not the address of a metrics page"
        assert await events.next_state() == ("blind", "not the address of a metrics page")
    assert not asked


@pytest.mark.parametrize(
    "url", ["http://[/metrics", "http://localhost:99999/metrics", "file:///metrics", "http:///metrics", "\0/metrics"]
)
async def test_an_address_that_is_none_is_a_failure(url: str) -> None:
    """An unusable address from a run's config stops nothing."""
    async with polling(url) as events:
        assert (await events.next_failure()).isprintable()


async def test_only_gets_are_sent_and_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is asked for with GET, directly, whatever the environment says of proxies."""
    methods: set[str] = set()

    async def answer(request: web.Request) -> web.Response:
        methods.add(request.method)
        return web.Response(text="trainer_step 1\n")

    monkeypatch.setenv("http_proxy", f"http://localhost:{free_port()}")
    async with serving(answer) as url, polling(url) as events:
        await events.next_samples(2)
    assert methods == {"GET"}


async def test_stops_at_once() -> None:
    """A cancel ends the source though a page hangs."""
    async with serving(hung) as url:
        async with polling(url, timeout_s=60):
            await anyio.sleep(0.2)  # until the request is out
            began_at = time.monotonic()
        assert time.monotonic() - began_at < 1
