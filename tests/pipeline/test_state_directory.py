"""The state directory: where it lies, whose it is, and that one process writes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import state_directory as module
from pipeline.state_directory import (
    AlreadyWatched,
    StateDirectoryError,
    filesystem_type,
    lock,
    run_id,
    state_directory,
)

ROOT = Path(__file__).parents[2]
MOUNTS = r"""
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:50 / /home rw,relatime shared:1 - nfs4 server:/home rw
31 22 0:51 / /home/with\040space rw - ext4 /dev/sdb rw
32 22 0:52 / /data rw - ext4 /dev/sdc rw
33 32 0:53 / /data rw master:1 - lustre mds@tcp:/data rw
34 22 0:54 / /mnt rw - fuse.sshfs host:/ rw
broken line
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a state home of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_each_run_has_its_own(home: Path, tmp_path: Path) -> None:
    """Runs of the same name in two places get two directories, each readable by its user alone."""
    one, two = (state_directory(tmp_path / parent / "run") for parent in ("a", "b"))
    assert one != two
    assert one.parent == home / "runwatch"
    assert one.name.startswith("run-")
    assert [path.stat().st_mode & 0o777 for path in (one, one.parent)] == [0o700, 0o700]


def test_a_link_to_a_run_is_the_run(home: Path, tmp_path: Path) -> None:
    """The same run reached by a link has the same state."""
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    assert state_directory(tmp_path / "link") == state_directory(tmp_path / "run")


def test_a_name_is_made_harmless() -> None:
    """Whatever a run directory is called, its id is a short plain name."""
    assert run_id(Path("/x/a b\n../é" + "z" * 300)).isascii()
    assert len(run_id(Path("/x/" + "z" * 250))) < 64
    run_id(Path("/x/\udc80"))


def test_a_relative_state_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A state home that is not absolute does not count, as its specification says."""
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_directory(tmp_path / "run").parent == tmp_path / ".local" / "state" / "runwatch"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/etc", "ext4"),
        ("/home/me", "nfs4"),
        ("/homely", "ext4"),
        ("/home/with space/me", "ext4"),
        ("/data/x", "lustre"),
        ("/mnt", "fuse.sshfs"),
    ],
)
def test_the_mount_of_a_path(path: str, kind: str) -> None:
    """A path is on the last of its longest mounts."""
    assert filesystem_type(Path(path), MOUNTS) == kind


@pytest.fixture
def networked(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the state home be on NFS; return where local state goes."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 8:1 / / rw - ext4 d rw\n2 1 0:5 / {home} rw - nfs4 server:/ rw\n")
    monkeypatch.setattr(module, "MOUNTS", mounts)
    monkeypatch.setattr(module, "LOCAL_BASE", tmp_path / "local")
    return tmp_path / "local"


def test_moved_off_a_network(networked: Path, tmp_path: Path) -> None:
    """State does not lie on a network file system but on the host's disk."""
    directory = state_directory(tmp_path / "run")
    assert directory.parent == networked / f"runwatch-{os.geteuid()}"
    assert directory.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("trap", ["link", "file", "foreign"])
def test_a_directory_of_another_is_refused(trap: str, networked: Path, tmp_path: Path) -> None:
    """What another user could have put at the place on a shared disk is not used."""
    place = networked / f"runwatch-{os.geteuid()}"
    networked.mkdir()
    if trap == "link":
        place.symlink_to(tmp_path)
    elif trap == "file":
        place.touch()
    elif os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    else:
        place.mkdir()
        os.chown(place, 12345, 12345)
    with pytest.raises(StateDirectoryError, match="not used"):
        state_directory(tmp_path / "run")


def test_a_directory_open_to_others_is_closed(networked: Path, tmp_path: Path) -> None:
    """One's own directory that others may read is made private."""
    place = networked / f"runwatch-{os.geteuid()}"
    place.mkdir(parents=True, mode=0o755)
    state_directory(tmp_path / "run")
    assert place.stat().st_mode & 0o777 == 0o700


def test_where_no_directory_can_be(home: Path, tmp_path: Path) -> None:
    """A state directory that cannot be made says which and why."""
    home.write_text("a file")
    with pytest.raises(StateDirectoryError, match=r"the state directory of .*/run cannot be made: .*/state"):
        state_directory(tmp_path / "run")


HOLDER = """
import sys
from pathlib import Path
from pipeline.state_directory import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_writer(tmp_path: Path) -> None:
    """A second watcher is refused and told who watches; killed, the first one's right is gone at once."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(
                AlreadyWatched, match=rf"already watched by pid {holder.pid} \(.+ on .+\) since 20"
            ) as refusal,
            lock(tmp_path),
        ):
            pass
        assert refusal.value.owner is not None
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with lock(tmp_path):
            pass


@pytest.mark.parametrize("trap", ["full", "gone"])
def test_where_no_lock_can_be_written(trap: str, tmp_path: Path) -> None:
    """A full disk, and a directory that vanished, are said as such."""
    if trap == "full":
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "lock").symlink_to("/dev/full")
    with pytest.raises(StateDirectoryError, match=r"state cannot be written: "), lock(tmp_path / "state"):
        pass


def test_an_owner_that_is_starting(tmp_path: Path) -> None:
    """A lock that is held but not yet signed is refused without a name."""
    with lock(tmp_path):
        (tmp_path / "lock").write_text("{")
        with pytest.raises(AlreadyWatched, match="by another process") as refusal, lock(tmp_path):
            pass
    assert refusal.value.owner is None
