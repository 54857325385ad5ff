"""
Notifications through apprise: Slack, mail and a hundred other services.

apprise and all that it loads costs 20 MB and a third of a second: it is imported
when the first such sink is opened. It blocks, so each sink has a thread of its own.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from pipeline.alerts import SEVERITIES, Notification, Severity
from pipeline.own_thread import OwnThread, own_thread
from sinks.base import OutboxItem, Rejected, TryAgain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

BODY_CHARS = 8000
TITLE_CHARS = 200
URL_BYTES = 16 * 1024
_CUT = "\n[cut]"
_STATUS = re.compile(r"error=(\d{3})\b")
_KINDS: dict[Severity, str] = {"info": "info", "warning": "warning", "critical": "failure"}


class AppriseOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="apprise"):
    """One service that apprise knows. Its URL holds secrets, so it is named by reference only."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    url_file: str | None = None
    """A file that holds the URL."""
    url_env: str | None = None
    """An environment variable that holds the URL."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 20.0
    min_severity: Severity = "info"

    def __post_init__(self) -> None:
        """Refuse options that name no URL, or two."""
        if (self.url_file is None) == (self.url_env is None):
            message = f'sink "{self.name}" needs url_file or url_env, and not both'
            raise ValueError(message)

    def wants(self, notification: Notification) -> bool:
        """Whether *notification* is severe enough for this sink."""
        return SEVERITIES.index(notification.severity) >= SEVERITIES.index(self.min_severity)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[AppriseSink]:
        """
        Load the service; end its thread on the way out.

        Raises:
            Rejected: The URL is not there, or apprise does not know it.

        """
        async with own_thread(f"runwatch {self.name}") as thread:
            yield AppriseSink(self.timeout_s, thread, await thread.run(lambda: _load(self)))


class AppriseSink:
    """Delivers notifications to one service."""

    ordered = False

    def __init__(self, timeout_s: float, thread: OwnThread, service: Any) -> None:
        self.timeout_s = timeout_s
        self._thread = thread
        self._service = service

    async def deliver(self, item: OutboxItem) -> None:
        """
        Return once the service has taken *item*.

        Raises:
            TryAgain: It did not. apprise does not say whether it ever will.
            Rejected: *item* is not a notification.

        """
        content = item.content
        if not isinstance(content, Notification):
            reason = "this sink takes notifications only"
            raise Rejected(reason)
        await self._thread.run(lambda: _send(self._service, content))


def _load(options: AppriseOptions) -> Any:
    """Return the apprise service that *options* name."""
    import apprise  # noqa: PLC0415 - see the module's docstring

    _quiet("apprise")
    _quiet("urllib3")
    url, place = _url(options)
    # with a timeout of its own apprise goes through a pool that all services share and that the end waits for
    service = apprise.Apprise.instantiate(url, apprise.AppriseAsset(service_timeout=0, async_mode=False))
    if service is None:
        reason = f"{place} holds no URL that apprise knows"
        raise Rejected(reason)
    # `optional` reports failures as successes; retries are the outbox's, which survives a restart
    if service.optional or service.retry:
        reason = f"{place} holds a URL with optional= or retry=: leave them out"
        raise Rejected(reason)
    return service


def _quiet(name: str) -> None:
    """Keep what a library logs to itself: it prints the URL of a request, which holds the token."""
    logger = logging.getLogger(name)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logger.addHandler(logging.NullHandler())


def _url(options: AppriseOptions) -> tuple[str, str]:
    """Return the URL and how to name the place where it stands."""
    if options.url_env is not None:
        place = f'sink "{options.name}": url_env {options.url_env}'
        url = os.environ.get(options.url_env, "").strip()
    else:
        path = Path(options.url_file or "").expanduser()
        place = f'sink "{options.name}": url_file {path}'
        try:
            with path.open("rb") as file:
                url = file.read(URL_BYTES).decode().strip()
        except OSError as error:
            reason = f"{place} cannot be read: {error.strerror}"
            raise Rejected(reason) from error
        except UnicodeDecodeError as error:
            reason = f"{place} is not text"
            raise Rejected(reason) from error
    if not url:
        reason = f"{place} is empty"
        raise Rejected(reason)
    if len(url.split()) != 1:
        reason = f"{place} holds more than one word: one URL is wanted"
        raise Rejected(reason)
    return url, place


def _send(service: Any, content: Notification) -> None:
    """Send *content* to *service*, and to it alone, so that the answer is its answer."""
    import apprise  # noqa: PLC0415

    sender = apprise.Apprise()
    sender.add(service)
    title = " ".join(_encodable(content.title).split())[: min(TITLE_CHARS, service.title_maxlen or TITLE_CHARS)]
    try:
        # declared as text, apprise escapes it for Slack's mrkdwn, HTML mail and the like
        result = sender.notify(
            title=title,
            body=body_text(content, min(BODY_CHARS, service.body_maxlen)),
            body_format=apprise.NotifyFormat.TEXT,
            notify_type=_KINDS[content.severity],
            interpret_escapes=False,
        )
    except Exception as error:  # noqa: BLE001 - the plugins raise what they like, with the URL in it
        reason = f"{service.service_name}: {type(error).__name__}"
        raise TryAgain(reason) from None
    if not result:
        reason = f"{service.service_name} did not take it{_status(result)}"
        raise TryAgain(reason)


def body_text(content: Notification, limit: int) -> str:
    """Return the body cut to *limit* characters; its last line says which message it is."""
    mark = f"\n\nrunwatch {content.id}"
    body = _encodable(content.body).rstrip()
    room = limit - len(mark)
    if len(body) > room:
        body = body[: max(0, room - len(_CUT))].rstrip() + _CUT
    return body + mark


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _status(result: Any) -> str:
    """Return the HTTP status that apprise's log mentions; the rest of that log may hold secrets."""
    statuses = [match[1] for service in result for entry in service.logs() if (match := _STATUS.search(entry.message))]
    return f" (HTTP {statuses[-1]})" if statuses else ""
