"""The engine's metrics page, as vLLM 0.26 serves it, with the figures of the moment."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Self

from pipeline.simulator.inference import MODEL, gauges
from pipeline.simulator.rollouts import PROMPT_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.simulator.episodes import Episode

LOOPBACK = "127.0.0.1"
HELP = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
    "num_preemptions_total": "Cumulative number of preemption from the engine.",
    "prompt_tokens_total": "Number of prefill tokens processed.",
    "generation_tokens_total": "Number of generation tokens processed.",
    "request_success_total": "Count of successfully processed requests.",
}


def metrics_page(rollouts: list[Episode], at_s: float) -> str:
    """Return the page's text at a moment of the attempt."""
    answered = sum(rollout.ended_s <= at_s and not rollout.error for rollout in rollouts)
    values = gauges(rollouts, at_s) | {
        "prompt_tokens_total": answered * PROMPT_TOKENS,
        "request_success_total": answered,
    }
    lines = []
    for name, text in HELP.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        reason = 'finished_reason="stop",' if name == "request_success_total" else ""
        lines.append(f"# HELP vllm:{name} {text}")
        lines.append(f"# TYPE vllm:{name} {kind}")
        lines.append(f'vllm:{name}{{engine="0",{reason}model_name="{MODEL}"}} {float(values[name])}')
    return "\n".join(lines) + "\n"


class EnginePage:
    """
    The port of the engine: taken from the first, but answering only while an engine is open.

    Raises:
        OSError: The port belongs to somebody else.

    """

    def __init__(self, port: int = 0) -> None:
        self._socket = _bound(port)
        self._server: ThreadingHTTPServer | None = None
        self.port: int = self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the port to others."""
        self.close()
        self._socket.close()

    def open(self, text: Callable[[], str]) -> None:
        """Answer with *text* from now on."""
        server = ThreadingHTTPServer((LOOPBACK, self.port), _answering(text), bind_and_activate=False)
        server.socket.close()
        server.socket = self._socket
        server.server_activate()
        self._server = server
        Thread(target=server.serve_forever, args=(0.05,), name="engine page", daemon=True).start()

    def close(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            self._socket = _bound(self.port)


def _bound(port: int) -> socket.socket:
    """Return a socket that has the port, and does not listen: who connects is refused."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((LOOPBACK, port))
    except OSError:
        found.close()
        raise
    return found


def _answering(text: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Answer(BaseHTTPRequestHandler):
        """One request."""

        def do_GET(self) -> None:
            """Answer with the page; `/health` says that the engine lives."""
            path = self.path.partition("?")[0]
            data = text().encode() if path == "/metrics" else b""
            self.send_response(200 if path in {"/metrics", "/health"} else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing: the engine's log is written by the plan."""

    return Answer
