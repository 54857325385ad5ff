"""Prometheus pages of the inference engines, the router and the trainer."""

from __future__ import annotations

import errno
import zlib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
from aiohttp import ClientConnectorError, ClientError, ClientResponse, ClientSession, DummyCookieJar, TCPConnector

from pipeline.events import Sample, ScrapeFailed
from pipeline.formats.prometheus import parse
from pipeline.sources.base import Emit, Sight, now

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_S = 5.0
"""For a whole scrape, from the name's look-up to the last byte: it bounds a slow drip too."""
BODY_BYTES = 8 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
SERIES = 5000
ERROR_CHARS = 100
BLIND_AFTER = 2
"""Failures in a row: a single one is a busy engine."""

ENGINE_SERIES = frozenset(
    f"vllm:{name}"
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "num_requests_waiting_by_reason",
        "num_requests_swapped",
        "kv_cache_usage_perc",
        "gpu_cache_usage_perc",
        "num_preemptions_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "request_success_total",
        "corrupted_requests_total",
        "engine_sleep_state",
        "e2e_request_latency_seconds_sum",
        "e2e_request_latency_seconds_count",
        "time_to_first_token_seconds_sum",
        "time_to_first_token_seconds_count",
    )
)
OLD_NAMES = {"vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc"}
"""vLLM 0.9 served both names, earlier ones the old, later ones the new."""


class _ScrapeError(Exception):
    """A page could not be read; the message is short and quotes at most a little of it."""


class PrometheusSource:
    """
    Polls metrics pages, each in a task of its own: one that hangs delays no other.

    It only ever asks for the pages named, which must be called `/metrics`: beside an engine's page are commands that
    pause it or replace its weights.
    """

    def __init__(self, urls: Sequence[str], interval_s: float = 15.0, timeout_s: float = TIMEOUT_S) -> None:
        self.name = "metrics"
        self._urls = list(dict.fromkeys(urls))
        self._interval_s = interval_s
        self._timeout_s = timeout_s

    async def run(self, emit: Emit) -> None:
        """Emit the wanted series of each page at each interval; a page that fails is an event, never an error."""
        # no limit of connections: with one, pages that hang would use it up
        connector = TCPConnector(limit=0, force_close=True)
        jar = DummyCookieJar()
        async with (
            ClientSession(connector=connector, cookie_jar=jar, auto_decompress=False, trust_env=False) as session,
            anyio.create_task_group() as tasks,
        ):
            for place, url in enumerate(self._urls):
                tasks.start_soon(self._poll, session, url, place / len(self._urls), emit)

    async def _poll(self, session: ClientSession, url: str, phase: float, emit: Emit) -> None:
        """Scrape a page within a second, then at its own place in each interval: pages do not arrive together."""
        endpoint = _Endpoint(url)
        due = anyio.current_time() + self._interval_s * phase
        await anyio.sleep(min(1.0, self._interval_s) * phase)
        while True:
            try:
                page = await _fetch(session, url, self._timeout_s)
                samples = _samples(url, page)
            except _ScrapeError as error:
                await endpoint.failed(error, emit)
            else:
                await endpoint.answered(samples, emit)
            due = max(due + self._interval_s, anyio.current_time())
            await anyio.sleep_until(due)


class _Endpoint:
    """What is known of one page: whether it ever answered, and how often it has failed since."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._sight = Sight(f"metrics:{url}")
        self._has_answered = False
        self._failures = 0

    async def answered(self, samples: list[Sample], emit: Emit) -> None:
        """Emit what the page says."""
        self._has_answered = True
        self._failures = 0
        for change in self._sight.change("seeing"):
            await emit(change)
        for sample in samples:
            await emit(sample)

    async def failed(self, error: _ScrapeError, emit: Emit) -> None:
        """Emit the failure; before the first answer a closed port is a server that is still starting, or is off."""
        self._failures += 1
        await emit(ScrapeFailed(time=now(), endpoint=self._url, error=str(error)))
        if isinstance(error, _RefusedError) and not self._has_answered:
            changes = self._sight.change("absent", str(error))
        elif self._failures >= BLIND_AFTER:
            changes = self._sight.change("blind", str(error))
        else:
            changes = []
        for change in changes:
            await emit(change)


class _RefusedError(_ScrapeError):
    """Nobody listens at the port."""


async def _fetch(session: ClientSession, url: str, timeout_s: float) -> bytes:
    """
    Return the page at *url*.

    Raises:
        _ScrapeError: There is none, it is too long, or it takes too long.

    """
    try:
        _check_address(url)
        with anyio.fail_after(timeout_s):
            async with session.get(url, allow_redirects=False, headers={"Accept-Encoding": "gzip, deflate"}) as page:
                if page.status != 200:
                    msg = f"answered {page.status}"
                    raise _ScrapeError(msg)
                return await _body(page)
    except TimeoutError as error:
        msg = f"no whole answer in {timeout_s:g} s"
        raise _ScrapeError(msg) from error
    except ClientConnectorError as error:
        if error.os_error.errno == errno.ECONNREFUSED:
            msg = "connection refused"
            raise _RefusedError(msg) from error
        msg = _short(f"cannot connect: {error.os_error.strerror or error.os_error}")
        raise _ScrapeError(msg) from error
    except (ClientError, OSError, ValueError, zlib.error) as error:
        msg = _short(f"{type(error).__name__}: {error}")
        raise _ScrapeError(msg) from error


def _check_address(url: str) -> None:
    """
    Refuse what is not a metrics page.

    Raises:
        _ScrapeError: It is none.
        ValueError: It is no address at all.

    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.path.endswith("/metrics"):
        msg = "not the address of a metrics page"
        raise _ScrapeError(msg)


async def _body(page: ClientResponse) -> bytes:
    """
    Return the body, decompressed; memory stays within its limit whatever a few bytes would unfold to.

    Raises:
        _ScrapeError: It is longer than the limit, or compressed in an unknown way.

    """
    encoding = page.headers.get("Content-Encoding", "identity").lower()
    if encoding not in {"identity", "gzip", "deflate"}:
        msg = _short(f"unknown content encoding {encoding}")
        raise _ScrapeError(msg)
    unpack = None if encoding == "identity" else zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    body = bytearray()
    async for chunk in page.content.iter_chunked(CHUNK_BYTES):
        body += chunk if unpack is None else unpack.decompress(chunk, BODY_BYTES + 1 - len(body))
        if len(body) > BODY_BYTES:
            msg = f"longer than {BODY_BYTES // 1024 // 1024} MiB"
            raise _ScrapeError(msg)
    if unpack is not None and not unpack.eof:
        msg = "compressed body ends too early"
        raise _ScrapeError(msg)
    return bytes(body)


def _wanted(name: str) -> bool:
    """Say whether rules have a use for a series; buckets are most of a page, and `_created` is a date."""
    if name.startswith(("trainer_", "vllm_router_")):
        return not name.endswith(("_bucket", "_created"))
    return name in ENGINE_SERIES


def _samples(url: str, page: bytes) -> list[Sample]:
    """
    Read the wanted series of a page; where it has an old name beside the new one, the old is dropped.

    Raises:
        _ScrapeError: It is not a page of Prometheus, or has too many series.

    """
    try:
        series = parse(page, _wanted, SERIES)
    except ValueError as error:
        raise _ScrapeError(_short(str(error))) from error
    time = now()
    names = {name for name, _, _ in series}
    return [
        Sample(time=time, endpoint=url, name=OLD_NAMES.get(name, name), labels=labels, value=value)
        for name, labels, value in series
        if OLD_NAMES.get(name) not in names
    ]


def _short(text: str) -> str:
    """Cut *text*, which may quote the page, to one short line of printable characters."""
    return "".join(char if char.isprintable() else " " for char in text)[:ERROR_CHARS].strip()
