"""
Where the state of a watched run lies, and who may write it.

SQLite's write-ahead log and `flock` are not to be trusted on a network file
system, and on clusters the home directory often is one: then the state lies on
the host's own disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import hashlib
import os
import re
import socket
import stat
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from pipeline.times import cut

if TYPE_CHECKING:
    from collections.abc import Iterator

log = structlog.get_logger()

MOUNTS = Path("/proc/self/mountinfo")
LOCAL_BASE = Path("/var/tmp")  # noqa: S108 - local, survives a reboot; ownership is checked below
NETWORK_TYPES = frozenset(
    {"nfs", "nfs4", "lustre", "cifs", "smb3", "smbfs", "beegfs", "gpfs", "ceph", "9p", "glusterfs", "afs", "pvfs2"}
    | {"orangefs", "panfs", "wekafs", "daosfs", "ocfs2", "gfs2", "virtiofs"}
)
NETWORK_FUSE = ("sshfs", "glusterfs", "ceph", "s3", "gcs", "juicefs", "beegfs", "lustre", "dfuse", "rclone", "nfs")


class StateDirectoryError(Exception):
    """The state directory cannot be made, or is not ours alone."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who watches a run."""

    pid: int
    user: str
    host: str
    since: datetime


class AlreadyWatched(Exception):  # noqa: N818 - a fact, not a fault
    """Another process watches the run. Its owner is `None` while that one is starting."""

    def __init__(self, owner: Owner | None) -> None:
        self.owner = owner
        who = "another process"
        if owner is not None:
            who = f"pid {owner.pid} ({owner.user} on {owner.host}) since {owner.since:%Y-%m-%d %H:%M:%S} UTC"
        super().__init__(f"the run is already watched by {who}")


def state_directory(run_dir: Path, *, make: bool = True) -> Path:
    """
    Return the state directory of *run_dir*, readable by its user alone; made if need be, unless *make* is false.

    Raises:
        StateDirectoryError: It cannot be made, or another user could have made it.

    """
    try:
        directory = _base() / run_id(run_dir)
        if make:
            directory.parent.parent.mkdir(parents=True, exist_ok=True)
        for folder in (directory.parent, directory):
            if make or os.path.lexists(folder):
                _own(folder)
    except (OSError, RuntimeError) as error:  # pathlib raises the latter for loops of links and a missing home
        message = f"the state directory of {run_dir} cannot be made: {error}; set XDG_STATE_HOME to a folder of yours"
        raise StateDirectoryError(message) from error
    return directory


def run_id(run_dir: Path) -> str:
    """Return a name for *run_dir* that is readable and its own."""
    path = os.fsencode(run_dir.resolve())
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", run_dir.resolve().name)[:40]
    return f"{readable}-{hashlib.sha256(path).hexdigest()[:16]}"


def network_filesystem(path: Path) -> str | None:
    """Return the type of the file system that *path* is or would be on, if it is a network's."""
    # resolved first: looking at a path is what makes an automounter mount it
    path = path.resolve()
    try:
        mounts = MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return None
    kind = filesystem_type(path, mounts)
    if kind in NETWORK_TYPES or (kind.startswith("fuse.") and any(name in kind for name in NETWORK_FUSE)):
        return kind
    return None


def filesystem_type(path: Path, mounts: str) -> str:
    """Return the type that *mounts*, the text of mountinfo, gives for an absolute *path*; empty if unknown."""
    found = ("", "")
    for line in mounts.splitlines():
        fields, _, types = line.partition(" - ")
        if len(parts := fields.split(" ")) < 5 or not types:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), parts[4])
        # of two mounts on one place the later one covers the other
        if path.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, types.split(" ")[0])
    return found[1]


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """
    Hold the right to watch the run whose state lies in *directory*.

    The kernel gives it back when the process ends, however it ends.

    Raises:
        AlreadyWatched: Another process holds it.
        StateDirectoryError: Nothing can be written there.

    """
    try:
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StateDirectoryError(_unwritable(directory, error)) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sign(descriptor)
        except BlockingIOError as error:
            raise AlreadyWatched(_owner(descriptor)) from error
        except OSError as error:
            raise StateDirectoryError(_unwritable(directory, error)) from error
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _base() -> Path:
    home = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = (home if home.is_absolute() else Path.home() / ".local" / "state") / "runwatch"
    if kind := network_filesystem(base):
        local = LOCAL_BASE / f"runwatch-{os.geteuid()}"
        log.info("state.moved", path=str(local), instead_of=str(base), reason=f"{kind} is a network file system")
        return local
    return base


def _own(directory: Path) -> None:
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        message = f"{directory} is not a directory of user {os.geteuid()}: not used"
        raise StateDirectoryError(message)
    if found.st_mode & 0o077:
        directory.chmod(0o700)


def _unwritable(directory: Path, error: OSError) -> str:
    return f"the state directory {directory} cannot be written: {error.strerror}"


def _sign(descriptor: int) -> None:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = str(os.getuid())
    owner = Owner(pid=os.getpid(), user=user, host=socket.gethostname(), since=cut(datetime.now(UTC)))
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, msgspec.json.encode(owner), 0)


def _owner(descriptor: int) -> Owner | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Owner)
    except msgspec.DecodeError:
        return None
