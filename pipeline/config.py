"""The config of runwatch: where it is looked for, and what it says."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, available_timezones

import msgspec

import rules
from rules.load import BadFile, decode
from rules.model import Rule
from rules.pattern import Duration, printable, quoted
from rules.rule_file import RuleFile
from rules.table import Name
from rules.toml_lines import Lines
from sinks import SinkOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

CHECK_IN_SINK = "STATUS.md"
"""The sink that writes check-ins. No other can have its name."""
LEAST_EVERY_S = 1.0
_METRICS_URL = re.compile(r"https?://[^/@?#\s]+(/[^@?#\s]*)?/metrics")
"""Other pages of an engine are commands; one with a password would show it wherever the page is named."""
_MOST_BYTES = 1 << 20
_BUILTIN = Path(rules.__file__).parent / "builtin"


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for the whole run."""

    timezone: str | None = None
    """IANA name of the zone of log lines without a date; `None` is the machine's."""
    metrics_urls: list[str] = []
    """Prometheus pages beside those that the run's own configs name."""

    def __post_init__(self) -> None:
        """Refuse a zone that is not known here, and what is not the address of a metrics page."""
        if self.timezone is not None:
            find_zone(self.timezone)
        for url in self.metrics_urls:
            if not _METRICS_URL.fullmatch(url):
                shown = "an address with a password" if "@" in url else quoted(url)
                message = f'{shown} cannot be polled; write it like "http://localhost:8000/metrics"'
                raise ValueError(message)

    @property
    def zone(self) -> ZoneInfo:
        """The zone of log lines without a date."""
        return machine_zone() if self.timezone is None else find_zone(self.timezone)


class CheckInOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When entries are written into STATUS.md."""

    every: Duration = Duration("1h")

    def __post_init__(self) -> None:
        """Refuse a flood."""
        if self.every < LEAST_EVERY_S:
            message = f"every has to be at least {LEAST_EVERY_S:g}s"
            raise ValueError(message)


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One config file; each key has a default."""

    run: RunOptions = RunOptions()
    checkin: CheckInOptions = CheckInOptions()
    rule_files: list[str] = []
    """Further files of rules, relative to the config's own folder; absolute once loaded."""
    disable: list[Name] = []
    """Names of rules that are not to be used."""
    rule: list[Rule] = []
    """A rule of one's own; one with the name of a built-in rule replaces it."""
    sink: list[SinkOptions] = []

    def __post_init__(self) -> None:
        """Refuse a sink that would take the place of the one that is always there."""
        if any(sink.name == CHECK_IN_SINK for sink in self.sink):
            message = f'no sink can be named "{CHECK_IN_SINK}": check-ins go by it'
            raise ValueError(message)


def load(path: Path | None, run_dir: Path | None) -> Config:
    """
    Return the config at *path*, else the first one there is in the usual places, else the defaults.

    Raises:
        BadFile: It cannot be read, or something in it is wrong.

    """
    place = path or next((place for place in _places(run_dir) if os.path.lexists(place)), None)
    if place is None:
        return Config()
    text, shown = read_text(place), printable(str(place))
    folder = Path(os.path.abspath(place)).parent  # noqa: PTH100 - `resolve` would leave a link
    config = _made_absolute(decode(text, shown, Config), folder)
    if config.disable and (messages := unknown_disabled(config.disable, load_rules(config), text, shown)):
        raise BadFile(messages)
    return config


def load_rules(config: Config) -> list[RuleFile]:
    """
    Return the built-in files of rules and what *config* adds to them; later rules replace earlier ones.

    Raises:
        BadFile: A file cannot be read, or something in one is wrong.

    """
    loaded: list[RuleFile] = []
    messages: list[str] = []
    for path in [*sorted(_BUILTIN.glob("*.toml")), *map(Path, config.rule_files)]:
        try:
            loaded.append(decode(read_text(path), printable(str(path)), RuleFile))
        except BadFile as error:
            messages += error.messages
    loaded.append(RuleFile(rule=config.rule))
    if messages:
        raise BadFile(messages)
    return loaded


def read_text(path: Path) -> str:
    """
    Return the text of the file at *path*.

    Raises:
        BadFile: It is not there, not readable, too large, or not UTF-8.

    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            reason = f"is larger than {_MOST_BYTES >> 20} MiB"
        elif content.startswith(b"\xef\xbb\xbf"):
            reason = "begins with a byte order mark: save it as UTF-8 without one"
        else:
            return content.decode()
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 at byte {error.start}"
    except OSError as error:
        reason = f"cannot be read: {(error.strerror or str(error)).lower()}"
    except ValueError:
        reason = "cannot be read: its name holds a NUL"
    raise BadFile([f"{printable(str(path))}: {reason}"])


def find_zone(name: str) -> ZoneInfo:
    """
    Return the time zone of the IANA *name*.

    Raises:
        ValueError: There is none; the message says which one may be meant.

    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        near = get_close_matches(name, available_timezones(), n=1)
        hint = f'did you mean "{near[0]}"?' if near else 'write it like "Europe/Berlin" or "UTC"'
        message = f"{quoted(name)} is not a time zone known here; {hint}"
        raise ValueError(message) from error


def machine_zone() -> ZoneInfo:
    """Return the zone that this machine is set to, UTC if it does not say."""
    named = os.environ.get("TZ", "").removeprefix(":") or "/etc/localtime"
    try:
        if not named.startswith("/"):
            return find_zone(named)
        with Path(named).open("rb") as file:
            return ZoneInfo.from_file(file, key=os.path.realpath(named).partition("/zoneinfo/")[2] or None)
    except (OSError, ValueError):
        return ZoneInfo("UTC")


def _made_absolute(config: Config, folder: Path) -> Config:
    """Return *config* with the names of files, which are relative to *folder*, made absolute."""

    def absolute(file: str) -> str:
        return str(folder / os.path.expanduser(file))  # noqa: PTH111 - see _places

    return msgspec.structs.replace(
        config,
        rule_files=[absolute(file) for file in config.rule_files],
        sink=[
            msgspec.structs.replace(sink, url_file=absolute(sink.url_file)) if sink.url_file else sink
            for sink in config.sink
        ],
    )


def _places(run_dir: Path | None) -> Iterator[Path]:
    """Yield where a config may be, the most specific place first."""
    if run_dir is not None:
        yield Path(os.path.realpath(run_dir)).parent / "runwatch.toml"
    home = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not home.is_absolute():  # the standard says to ignore such a value
        home = Path(os.path.expanduser("~")) / ".config"  # noqa: PTH111 - does not raise where there is no home
    yield home / "runwatch" / "config.toml"


def unknown_disabled(disable: Sequence[str], files: Iterable[RuleFile], text: str, name: str) -> list[str]:
    """Return a message for each of the disabled rules that no file has; the file *name* with *text* disables them."""
    names = [rule.name for file in files for rule in file.rule]
    lines, messages = Lines(text), list[str]()
    for i, one in enumerate(disable):
        if one not in names:
            near = get_close_matches(one, names, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            messages.append(f'{name}:{lines.of(("disable", i))}: $.disable[{i}]: no rule is named "{one}"{hint}')
    return messages
