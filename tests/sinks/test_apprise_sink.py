"""Notifications by apprise, against real servers on loopback."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path

import anyio
import msgspec
import pytest
from aiohttp import web
from aiosmtpd.smtp import SMTP, Envelope, Session

from pipeline.alerts import CheckIn, Notification, Severity
from sinks import SinkOptions
from sinks.apprise_sink import AppriseOptions, AppriseSink, body_text
from sinks.base import OutboxItem, Rejected, TryAgain

# apprise imports what Python 3.13 no longer has, where it still is there
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

ROOT = Path(__file__).parents[2]
T0 = datetime(2026, 8, 19, 12, tzinfo=UTC)
SECRET = "TIiajkdnlazkcOXrIdevi7"
SLACK = f"slack://T1JJ3T3L2/A1BRTD4JD/{SECRET}"


def notification(
    *, title: str = "cuda-oom", body: str = "rank 3 is out of memory", severity: Severity = "critical"
) -> Notification:
    return Notification(time=T0, id="inc-1/2", incident="inc-1", severity=severity, title=title, body=body)


def item(content: Notification | CheckIn) -> OutboxItem:
    return OutboxItem(sink="s", created=T0, content=content)


@asynccontextmanager
async def http_server(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncGenerator[int]:
    """Serve *answer* on a free port of loopback."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def sink_for(url: str, tmp_path: Path) -> AsyncGenerator[AppriseSink]:
    """Open a sink whose URL stands in a file."""
    (tmp_path / "url").write_text(url + "\n")
    async with AppriseOptions(name="chat", url_file=str(tmp_path / "url")).open() as sink:
        yield sink


@pytest.fixture
def slack_url(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], str]:
    """Point apprise's Slack at a port of loopback."""

    def url(port: int) -> str:
        from apprise.plugins.slack import NotifySlack  # noqa: PLC0415

        monkeypatch.setattr(NotifySlack, "webhook_url", f"http://127.0.0.1:{port}/services")
        monkeypatch.setattr(NotifySlack, "request_rate_per_sec", 0)
        return SLACK

    return url


async def test_slack_gets_text_and_no_commands(slack_url: Callable[[int], str], tmp_path: Path) -> None:
    """What would be a mention, a link or formatting in Slack arrives as plain text."""
    got: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        got.append(await request.text())
        return web.Response(text="ok")

    async with http_server(answer) as port, sink_for(slack_url(port), tmp_path) as sink:
        await sink.deliver(item(notification(title="a <b> & c\nd", body="<!channel> <http://evil|click> *x* & more")))
    (payload,) = [json.loads(text) for text in got]
    attachment = payload["attachments"][0]
    assert payload["mrkdwn"] is False
    assert attachment["title"] == "a &lt;b&gt; &amp; c d"
    assert attachment["text"].startswith("&lt;!channel&gt; &lt;http://evil|click&gt; *x* &amp; more")
    assert attachment["text"].splitlines()[-1] == "runwatch inc-1/2"


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_a_refusal_is_tried_again(status: int, tmp_path: Path) -> None:
    """Any refusal is tried again, as apprise does not tell them apart; the reason names status and service only."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=f"bad {SECRET}")

    async with http_server(answer) as port, sink_for(f"json://127.0.0.1:{port}/{SECRET}", tmp_path) as sink:
        with pytest.raises(TryAgain) as verdict:
            await sink.deliver(item(notification()))
    assert verdict.value.reason == f"JSON did not take it (HTTP {status})"


async def test_nothing_listens(tmp_path: Path) -> None:
    """A refused connection is tried again."""
    async with sink_for("json://127.0.0.1:9/x", tmp_path) as sink:
        with pytest.raises(TryAgain, match="JSON did not take it"):
            await sink.deliver(item(notification()))


async def test_a_hung_server_is_left_at_once(tmp_path: Path) -> None:
    """A delivery ends at once when it is cancelled, and closing the sink does not wait for the server either."""
    asked = anyio.Event()
    release = anyio.Event()

    async def answer(request: web.Request) -> web.Response:
        asked.set()
        await release.wait()
        return web.Response()

    async with http_server(answer) as port:
        with anyio.CancelScope() as scope:
            async with (
                sink_for(f"json://127.0.0.1:{port}/?rto=30", tmp_path) as sink,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(sink.deliver, item(notification()))
                await asked.wait()
                left = anyio.current_time()
                scope.cancel()
        assert anyio.current_time() - left < 5
        release.set()


PROGRAM = """
import sys
import anyio
from datetime import UTC, datetime
from pipeline.alerts import Notification
from sinks.apprise_sink import AppriseOptions
from sinks.base import OutboxItem

async def main():
    now = datetime.now(UTC)
    note = Notification(time=now, id="1", incident="1", severity="info", title="t", body="b")
    async with AppriseOptions(name="chat", url_env="CHAT_URL").open() as sink:
        with anyio.move_on_after(0.5):
            await sink.deliver(OutboxItem(sink="chat", created=now, content=note))

anyio.run(main)
"""


async def test_a_hung_server_does_not_keep_the_program() -> None:
    """A program ends although a server never answers what it was sent."""
    release = anyio.Event()

    async def answer(request: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    async with http_server(answer) as port:
        environment = {**os.environ, "CHAT_URL": f"json://127.0.0.1:{port}/?rto=120", "PYTHONWARNINGS": "ignore"}
        with anyio.fail_after(30):
            await anyio.run_process([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment)
        release.set()


class Mailbox:
    """Keeps what an SMTP server is sent."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        assert isinstance(envelope.content, bytes)
        mail = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        return "250 OK"


async def test_mail(tmp_path: Path) -> None:
    """A mail has the title as its subject, in one line, and the text, not interpreted, as its body."""
    mailbox = Mailbox()
    async with await asyncio.get_running_loop().create_server(lambda: SMTP(mailbox), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"mailto://127.0.0.1:{port}?from=runwatch@example.com&to=a@example.com&mode=insecure&smtp=127.0.0.1"
        async with sink_for(url, tmp_path) as sink:
            await sink.deliver(item(notification(title="x\r\nBcc: evil@example.com", body="<b>1 < 2</b>")))
    (mail,) = mailbox.mails
    assert mail["Subject"] == "x Bcc: evil@example.com"
    assert mail["Bcc"] is None
    body = mail.get_body(("html", "plain"))
    assert body is not None
    content = body.get_content()
    assert "1 &lt; 2" in content if body.get_content_type() == "text/html" else "<b>1 < 2</b>" in content
    assert "runwatch inc-1/2" in content


async def test_check_ins_do_not_belong_there(tmp_path: Path) -> None:
    """Anything but a notification is rejected."""
    async with sink_for("json://127.0.0.1:9/x", tmp_path) as sink:
        with pytest.raises(Rejected):
            await sink.deliver(item(CheckIn(time=T0, id="1", text="## x\n")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"nonsense://" + SECRET.encode(), "holds no URL that apprise knows"),
        (b"slack://" + SECRET.encode(), "holds no URL that apprise knows"),
        (f"json://h/{SECRET} json://i/{SECRET}".encode(), "holds more than one word: one URL is wanted"),
        (f"json://h/{SECRET}?optional=yes".encode(), "holds a URL with optional= or retry=: leave them out"),
        (f"json://h/{SECRET}?retry=2".encode(), "holds a URL with optional= or retry=: leave them out"),
        (b"\xff\xfe", "is not text"),
        (None, "cannot be read: No such file or directory"),
    ],
)
async def test_a_wrong_url(content: bytes | None, message: str, tmp_path: Path) -> None:
    """A URL that cannot be used is refused on opening, by the name of its place, without the URL."""
    path = tmp_path / "url"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Rejected) as verdict:
        async with AppriseOptions(name="chat", url_file=str(path)).open():
            pass
    assert verdict.value.reason == f'sink "chat": url_file {path} {message}'


async def test_the_environment_may_hold_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL may stand in an environment variable, and a missing one is named."""
    options = AppriseOptions(name="chat", url_env="CHAT_URL")
    with pytest.raises(Rejected, match='sink "chat": url_env CHAT_URL is empty'):
        async with options.open():
            pass
    monkeypatch.setenv("CHAT_URL", "json://127.0.0.1")
    async with options.open():
        pass


async def test_no_secret_is_logged(
    slack_url: Callable[[int], str], tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """With every library at its most talkative, the token is in no log, output or error."""
    caplog.set_level(logging.DEBUG)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=404, text=f"no_service {SECRET}")

    errors: list[str] = []
    async with http_server(answer) as port:
        url = slack_url(port)
        async with sink_for(url, tmp_path) as sink:
            for _ in range(2):
                with pytest.raises(TryAgain) as verdict:
                    await sink.deliver(item(notification()))
                errors.append(repr(verdict.value) + repr(verdict.value.__cause__) + repr(verdict.value.__context__))
        slack_url(9)
        async with sink_for(url, tmp_path) as sink:
            with pytest.raises(TryAgain) as verdict:
                await sink.deliver(item(notification()))
            errors.append(repr(verdict.getrepr(chain=True)))
    output = capfd.readouterr()
    assert SECRET not in caplog.text + output.out + output.err + "".join(errors)


@pytest.mark.parametrize("limit", [60, 140, 1000])
def test_a_long_body_is_cut(limit: int) -> None:
    """A body keeps within the channel's limit, says that it was cut, and keeps its last line."""
    text = body_text(notification(body="x" * 5000), limit)
    assert len(text) == limit
    assert text.endswith("x\n[cut]\n\nrunwatch inc-1/2")


def test_severity_decides() -> None:
    """A sink wants what is at least as severe as it says."""
    options = AppriseOptions(name="chat", url_env="X", min_severity="warning")
    severities: tuple[Severity, ...] = ("info", "warning", "critical")
    assert [options.wants(notification(severity=severity)) for severity in severities] == [False, True, True]


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "a"},
        {"name": "a", "url_file": "f", "url_env": "e"},
        {"name": "", "url_env": "e"},
        {"name": "a", "url_env": "e", "timeout_s": 0},
        {"name": "a", "url": SLACK},
    ],
)
def test_wrong_options(keys: dict[str, object]) -> None:
    """Options without a URL's place, with two, or with a URL itself are refused, and no secret is repeated."""
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert({"type": "apprise", **keys}, SinkOptions)
    assert SECRET not in str(error.value)
