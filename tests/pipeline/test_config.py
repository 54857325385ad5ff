"""The config: where it is found, what it may say, and what is said about one that cannot be used."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from pipeline.config import (
    CheckInOptions,
    Config,
    RunOptions,
    find_zone,
    load,
    load_rules,
    machine_zone,
)
from rules.load import BadFile
from rules.model import Rule
from sinks import SinkOptions

EXAMPLE = Path(__file__).parents[2] / "config.example.toml"
RULE = """
[[rule]]
name = "NAME"
failure_mode = "mine"
summary = "mine"
on = { log = { pattern = "mine" } }
escalate = [{ severity = "info", immediately = true }]
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the config of whoever runs the tests out of them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def write(path: Path, text: str | bytes) -> Path:
    """Write *text* to *path* and return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def every(seconds: int) -> str:
    """Return a config that is known again by its check-in."""
    return f'checkin.every = "{seconds}s"'


def refused(path: Path) -> list[str]:
    """Return what the config at *path* is refused with, without its name."""
    with pytest.raises(BadFile) as error:
        load(path, None)
    assert all(message.startswith(str(path)) for message in error.value.messages)
    return [message.removeprefix(str(path)) for message in error.value.messages]


def test_without_a_config_there_are_defaults(tmp_path: Path) -> None:
    """No config is needed."""
    config = load(None, tmp_path / "outputs" / "run")
    assert config == Config()
    assert (config.checkin.every, config.rule, config.sink, config.run.timezone) == (3600.0, [], [], None)


def test_the_nearest_config_is_taken(tmp_path: Path) -> None:
    """The named file comes first, then the one beside the run directory, then that of the user."""
    run_dir = tmp_path / "outputs" / "run"
    run_dir.mkdir(parents=True)
    write(tmp_path / "xdg" / "runwatch" / "config.toml", every(3))
    assert load(None, run_dir).checkin.every == 3
    assert load(None, None).checkin.every == 3
    write(tmp_path / "outputs" / "runwatch.toml", every(2))
    assert load(None, run_dir).checkin.every == 2
    assert load(None, None).checkin.every == 3
    assert load(write(tmp_path / "named.toml", every(1)), run_dir).checkin.every == 1


def test_the_config_beside_a_linked_run_directory(tmp_path: Path) -> None:
    """Of a run directory that is a link, the folder is that of the real one."""
    (tmp_path / "outputs" / "run").mkdir(parents=True)
    (tmp_path / "link").symlink_to("outputs/run")
    write(tmp_path / "outputs" / "runwatch.toml", every(2))
    assert load(None, tmp_path / "link").checkin.every == 2


def test_without_xdg_the_config_is_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unset or relative XDG_CONFIG_HOME means ~/.config."""
    write(tmp_path / "home" / ".config" / "runwatch" / "config.toml", every(4))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert load(None, None).checkin.every == 4
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert load(None, None).checkin.every == 4


def test_a_config_that_is_found_and_unusable_is_not_passed_over(tmp_path: Path) -> None:
    """A broken config nearby is an error, not a reason to take another."""
    write(tmp_path / "xdg" / "runwatch" / "config.toml", every(3))
    (tmp_path / "runwatch.toml").symlink_to("nowhere")
    with pytest.raises(BadFile, match=r"runwatch\.toml: cannot be read: no such file"):
        load(None, tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = 'caf\xe9'", ": is not UTF-8 at byte 8"),
        (b"\xef\xbb\xbfa = 1", ": begins with a byte order mark: save it as UTF-8 without one"),
        (b"\xff\xfea\x00", ": is not UTF-8 at byte 0"),
        (b"#" * ((1 << 20) + 1), ": is larger than 1 MiB"),
        (b"a", ":1: not TOML: expected '=' after a key in a key/value pair"),
        (b"[runs]", ':1: $: unknown key "runs"; did you mean "run"?'),
        (b'[checkin]\nevery = "1 hour"', ':2: $.checkin.every: "1 hour" is not a duration: write it as "1h"'),
        (b"[run]\ntimezone = 'Europe/Berlni'", ':1: $.run: "Europe/Berlni" is not a time zone known here; '),
        (
            b"[run]\nmetrics_urls = ['http://a:1/pause']",
            ':1: $.run: "http://a:1/pause" cannot be polled; write it like ',
        ),
        (
            b"[run]\nmetrics_urls = ['http://me:secret@a/metrics']",
            ":1: $.run: an address with a password cannot be polled",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    """Each way to be unusable has a message that begins with the file."""
    (found,) = refused(write(tmp_path / "c.toml", content))
    assert found.startswith(message)


def test_what_is_not_a_file_is_said(tmp_path: Path) -> None:
    """A folder, a missing file and an impossible name are told apart."""
    assert refused(tmp_path) == [": cannot be read: is a directory"]
    assert refused(tmp_path / "none.toml") == [": cannot be read: no such file or directory"]
    with pytest.raises(BadFile, match="its name holds a NUL"):
        load(Path("a\0b"), None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    """A file without the right to read it is told as that."""
    path = write(tmp_path / "c.toml", every(1))
    path.chmod(0)
    assert refused(path) == [": cannot be read: permission denied"]


@pytest.mark.parametrize("key", ["url", "token", "password", "webhook_url"])
def test_secrets_are_kept_out_of_the_config(tmp_path: Path, key: str) -> None:
    """A secret in a sink is refused, told where it belongs, and not repeated."""
    text = f'[[sink]]\ntype = "apprise"\nname = "team"\nurl_env = "X"\n{key} = "slack://hunter2"\n'
    (message,) = refused(write(tmp_path / "c.toml", text))
    assert message.startswith(f':5: $.sink[0]: "{key}" would put a secret into this file: give url_file or url_env')
    assert "hunter2" not in message


def test_sinks_have_names_of_their_own(tmp_path: Path) -> None:
    """Two sinks cannot have the same name."""
    sink = '[[sink]]\ntype = "apprise"\nname = "team"\nurl_env = "X"\n'
    assert refused(write(tmp_path / "c.toml", sink * 2)) == [':7: $.sink[1]: duplicate name "team": $.sink[0] has it']


def test_rule_files_are_relative_to_the_config(tmp_path: Path) -> None:
    """Files of rules lie beside the config that names them, and are read with the built-in ones."""
    write(tmp_path / "etc" / "more" / "a.toml", RULE.replace("NAME", "from-file"))
    path = write(tmp_path / "etc" / "c.toml", "rule_files = ['more/a.toml']" + RULE.replace("NAME", "from-config"))
    config = load(path, None)
    assert config.rule_files == [str(tmp_path / "etc" / "more" / "a.toml")]
    files = load_rules(config)
    assert [rule.name for file in files[-2:] for rule in file.rule] == ["from-file", "from-config"]
    assert [file.rule for file in files[:-2]] == [file.rule for file in load_rules(Config())[:-1]]


def test_the_file_of_a_url_is_relative_to_the_config(tmp_path: Path) -> None:
    """As a file of rules is: where the program is started does not count."""
    text = "".join(
        f"[[sink]]\ntype = 'apprise'\nname = '{name}'\nurl_file = '{file}'\n"
        for name, file in [("a", "team.url"), ("b", "/etc/team.url"), ("c", "~/team.url")]
    )
    config = load(write(tmp_path / "c.toml", text + "[[sink]]\ntype = 'apprise'\nname = 'd'\nurl_env = 'X'\n"), None)
    home = tmp_path / "home"
    assert [sink.url_file for sink in config.sink] == [
        str(tmp_path / "team.url"),
        "/etc/team.url",
        str(home / "team.url"),
        None,
    ]


def test_no_sink_takes_the_place_of_check_ins(tmp_path: Path) -> None:
    """A sink of that name would be told the check-ins, and STATUS.md nothing."""
    text = "[[sink]]\ntype = 'apprise'\nname = 'STATUS.md'\nurl_env = 'X'\n"
    assert refused(write(tmp_path / "c.toml", text)) == [':1: $: no sink can be named "STATUS.md": check-ins go by it']


def test_check_ins_are_no_flood(tmp_path: Path) -> None:
    """An interval that a replay would need hours for is refused."""
    assert refused(write(tmp_path / "c.toml", '\ncheckin.every = "999ms"\n')) == [
        ":2: $.checkin: every has to be at least 1s"
    ]


def test_rule_files_may_lie_anywhere(tmp_path: Path) -> None:
    """A file of rules may be absolute or in the home; a home that nobody has is no crash."""
    path = write(tmp_path / "c.toml", "rule_files = ['/etc/a.toml', '~/a.toml', '~nobody-of-that-name/a.toml']")
    assert load(path, None).rule_files == [
        "/etc/a.toml",
        f"{tmp_path}/home/a.toml",
        f"{tmp_path}/~nobody-of-that-name/a.toml",
    ]


def test_all_files_of_rules_are_read_before_complaining(tmp_path: Path) -> None:
    """Each bad file of rules is named, not only the first."""
    files = [write(tmp_path / name, "rules = []") for name in ("a.toml", "b.toml")]
    with pytest.raises(BadFile) as error:
        load_rules(Config(rule_files=[str(tmp_path / "none.toml"), *map(str, files)]))
    assert error.value.messages == [
        f"{tmp_path}/none.toml: cannot be read: no such file or directory",
        *(f'{file}:1: $: unknown key "rules"; did you mean "rule"?' for file in files),
    ]


def test_only_a_rule_that_exists_can_be_disabled(tmp_path: Path) -> None:
    """A misspelt name in `disable` is an error rather than a rule that goes on."""
    path = write(tmp_path / "c.toml", "disable = ['my-rule', 'my-rul']" + RULE.replace("NAME", "my-rule"))
    with pytest.raises(BadFile) as error:
        load(path, None)
    assert error.value.messages == [f'{path}:1: $.disable[1]: no rule is named "my-rul"; did you mean "my-rule"?']


def test_the_built_in_rules_are_sound() -> None:
    """What ships can be read, and no two built-in rules have the same name."""
    names = [rule.name for file in load_rules(Config()) for rule in file.rule]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    "name", ["Mars", "", "../../etc/passwd", "/etc/passwd", "America", "a\0", "\ud800", "x" * 5000]
)
def test_what_is_not_a_time_zone(name: str) -> None:
    """No name of a zone makes anything but a message."""
    with pytest.raises(ValueError, match="is not a time zone known here"):
        find_zone(name)


@pytest.mark.parametrize(
    ("value", "zone"), [("Europe/Berlin", "Europe/Berlin"), (":Asia/Tokyo", "Asia/Tokyo"), ("no/zone", "UTC")]
)
def test_the_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch, value: str, zone: str) -> None:
    """The machine's zone is that of TZ, UTC if that is not known; a zone in the config replaces it."""
    monkeypatch.setenv("TZ", value)
    assert machine_zone().key == zone
    assert RunOptions().zone.key == zone
    assert RunOptions(timezone="America/New_York").zone.key == "America/New_York"


def test_the_zone_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TZ the zone is that of the machine's own file; what is no file of a zone is UTC."""
    monkeypatch.delenv("TZ", raising=False)
    here = datetime(2026, 7, 1, tzinfo=UTC).timestamp()
    offset_s = time.localtime(here).tm_gmtoff
    assert datetime.fromtimestamp(here, machine_zone()).utcoffset() == timedelta(seconds=offset_s)
    monkeypatch.setenv("TZ", ":/etc/passwd")
    assert machine_zone().key == "UTC"


def test_the_example_holds_the_defaults() -> None:
    """What is not commented out in the example is what holds without a config."""
    assert load(EXAMPLE, None) == Config()


def test_the_example_is_sound_with_every_comment_taken_away(tmp_path: Path) -> None:
    """What is commented out in the example can be used, and every key of a config is in it."""
    text = re.sub(r"^#(?=[^ ]|  \{)", "", EXAMPLE.read_text(), flags=re.MULTILINE)
    config = load(write(tmp_path / "c.toml", text), None)
    assert {sink.__struct_config__.tag for sink in config.sink} == {
        kind.__struct_config__.tag for kind in get_args(SinkOptions) or [SinkOptions]
    }
    kinds = [Config, RunOptions, CheckInOptions, Rule, *(get_args(SinkOptions) or [SinkOptions])]
    keys = {field.encode_name for kind in kinds for field in msgspec.structs.fields(kind)}
    assert {key for key in keys if not re.search(rf"^(\[*{key}\]+$|{key} = )", text, re.MULTILINE)} == set()
