"""
A prime-rl run directory: what is where. Opened read-only, and nothing is written.

Directories appear and vanish while they are read (a resume deletes rollouts and
broadcasts), so what cannot be read of an entry is left out, not raised. Links are
not followed: a multi-node run's `trainer.log` is one to a file that is listed anyway.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from pipeline.birth import birth_ns
from pipeline.events import Marker, MarkerKind
from pipeline.times import cut, from_epoch

if TYPE_CHECKING:
    from collections.abc import Iterator

Subset: TypeAlias = Literal["all", "effective"]

BATCHES = 8
"""Of so many of the newest steps the batch is looked for."""
CONFIG_BYTES = 4 * 2**20
"""A larger config is not read."""
_ATTEMPT = re.compile(r"attempt_(\d{1,9})")
_STEP = re.compile(r"step_(\d{1,15})")
_MARKERS: tuple[tuple[str, str, MarkerKind], ...] = (
    ("broadcasts", "STABLE", "policy-published"),
    ("broadcasts", "NCCL_READY", "policy-joined"),
    ("checkpoints", "trainer/.metadata", "checkpoint-trainer"),
    ("checkpoints", "orchestrator/progress.pt", "checkpoint-orchestrator"),
    ("rollouts", "rank_0.bin", "batch-sent"),  # where batches go through the file system: what each rank trains on
)
_CONFIGS = ("orchestrator", "trainer", "rl", "sft", "inference", "evaluator", "evals")
_SHARED_LOGS = ("logs/inference", "logs/envs")
"""Logs of an evaluation job of its own, which knows no attempts."""


class NotARunDirectory(Exception):  # noqa: N818 (says what is wrong, as FileNotFoundError does)
    """There is no directory there."""


class Attempt(NamedTuple):
    """One launch of the run: a directory of logs."""

    number: int
    path: Path
    identity: str
    """Device, inode and birth of the directory; without the birth where the file system does not tell."""
    begun: datetime | None
    """The birth. A copy's says when it was copied."""


class LogFile(NamedTuple):
    """A log file; `attempt` is `None` if it belongs to no one launch."""

    path: Path
    relative: str
    attempt: int | None


class RolloutFile(NamedTuple):
    """A file of rollouts of one step."""

    path: Path
    relative: str
    kind: Literal["train", "eval"]
    step: int


class RunDirectory:
    """
    Finds the files of a run.

    Raises:
        NotARunDirectory: There is no directory at *path*.

    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        try:
            is_directory = S_ISDIR(self.path.stat().st_mode)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            message = f"{path}: not a run directory: {reason}"
            raise NotARunDirectory(message) from error
        if not is_directory:
            message = f"{path}: not a run directory: it is a file"
            raise NotARunDirectory(message)

    @property
    def name(self) -> str:
        """The name of the directory, which is the run's unless it was moved."""
        return self.path.resolve().name

    def attempts(self) -> list[Attempt]:
        """Return the launches by number; a run of the old layout, without attempts, has one."""
        logs = self.path / "logs"
        numbered = sorted((number, path) for number, path in _numbered(logs, _ATTEMPT))
        if not numbered and any(entry.name.endswith(".log") for entry in _entries(logs)):
            numbered = [(1, logs)]
        return [attempt for number, path in numbered if (attempt := _attempt(number, path))]

    def latest(self) -> Attempt | None:
        """
        Return the launch to which `logs/latest` points.

        Without a link (a scheduler's script removes it before it makes the new one) it
        is the one with the highest number.
        """
        attempts = self.attempts()
        try:
            target = (self.path / "logs" / "latest").readlink().name
        except OSError:
            target = ""
        linked = (attempt for attempt in attempts if attempt.path.name == target)
        return next(linked, attempts[-1] if attempts else None)

    def log_files(self, attempt: Attempt) -> list[LogFile]:
        """Return the logs of one launch, of every depth, by path."""
        return [self._log_file(path, attempt.number) for path in sorted(_walk(attempt.path, (".log",)))]

    def shared_logs(self) -> list[LogFile]:
        """Return the logs that are not of one launch: of scheduler jobs, and of an evaluation job of its own."""
        paths = [path for pattern in ("job_*.log", "eval_job_*.log") for path in _matching(self.path, pattern)]
        if any(True for _ in _numbered(self.path / "logs", _ATTEMPT)):
            paths += _matching(self.path / "logs", "*.log")
            paths += [path for name in _SHARED_LOGS for path in _walk(self.path / name, (".log",))]
        return [self._log_file(path, None) for path in sorted(paths)]

    def metrics_file(self) -> Path:
        """Return where the metrics are, or will be."""
        return self.path / "metrics.jsonl"

    def rollout_files(self, subset: Subset = "all", *, since: int = 0) -> list[RolloutFile]:
        """
        Return the files of rollouts by step; `effective` repeats what `all` holds.

        Steps before *since* are not looked at: thousands take tenths of a second.
        """
        found: list[RolloutFile] = []
        kinds: tuple[Literal["train", "eval"], ...] = ("train", "eval")
        for step, directory in sorted(_numbered(self.path / "rollouts", _STEP, since)):
            for kind in kinds:
                path = directory / kind / subset / "traces.jsonl"
                if _regular(path):
                    found.append(RolloutFile(path, self._relative(path), kind, step))
        return found

    def markers(self, *, since: int = 0) -> list[Marker]:
        """Return the marker files that there are, by time; of steps before *since* none."""
        markers: list[Marker] = []
        folders = dict.fromkeys(directory for directory, _, _ in _MARKERS)
        steps = {name: sorted(_numbered(self.path / name, _STEP, since)) for name in folders}
        steps["rollouts"] = steps["rollouts"][-BATCHES:]  # there are thousands, and in most runs no such file
        for directory, name, kind in _MARKERS:
            for number, step in steps[directory]:
                if (stat := _regular(step / name)) and (time := _modified(stat)):
                    markers.append(Marker(time=time, source=self._relative(step / name), kind=kind, number=number))
        return sorted(markers, key=lambda marker: (marker.time, marker.source))

    def config_paths(self) -> list[Path]:
        """Return where configs are, those below `configs/`, then the batch scripts, which tell of several nodes."""
        configs, scripts = _walk(self.path / "configs", (".json", ".toml")), _matching(self.path, "*.sbatch")
        return [Path(path) for path in (*sorted(configs), *sorted(scripts))]

    def config_files(self) -> dict[str, bytes]:
        """Return the configs by their name below `configs/`, and the batch scripts; too large ones are left out."""
        files: dict[str, bytes] = {}
        for path in self.config_paths():
            try:
                with path.open("rb") as file:
                    data = file.read(CONFIG_BYTES + 1)
            except OSError:
                continue
            if len(data) <= CONFIG_BYTES:
                files[self._relative(path).removeprefix("configs/")] = data
        return files

    def _log_file(self, path: str, attempt: int | None) -> LogFile:
        return LogFile(Path(path), path.removeprefix(f"{self.path}{os.sep}"), attempt)  # hundreds, in each pass

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()


def is_run_directory(path: Path) -> bool:
    """Say whether *path* looks like a run: it has configs of one, attempts, or the logs of an old one."""
    logs = path / "logs"
    return (
        any(_regular(path / "configs" / f"{name}{kind}") for name in _CONFIGS for kind in (".json", ".toml"))
        or any(True for _ in _numbered(logs, _ATTEMPT))
        or any(_regular(logs / f"{name}.log") for name in ("orchestrator", "trainer"))
    )


def candidates(output_dir: Path) -> list[Path]:
    """Return the directories below *output_dir* that look like runs, the one last written to first."""
    paths = (Path(entry.path) for entry in _entries(output_dir) if _is_directory(entry))
    runs = [(_last_written(path), path) for path in paths if is_run_directory(path)]
    return [path for _, path in sorted(runs, key=lambda run: (-run[0], run[1]))]


def _last_written(run: Path) -> float:
    """Return when the run last wrote, in seconds: a directory's own time says little, anybody may touch it."""
    try:
        directory = RunDirectory(run)
    except NotARunDirectory:  # it vanished meanwhile
        return 0.0
    latest = directory.latest()
    logs = [log.path for log in directory.log_files(latest)] if latest else []
    configs = map(Path, _walk(run / "configs", (".json", ".toml")))
    stats = (_regular(path) for path in (directory.metrics_file(), *logs, *configs))
    return max((stat.st_mtime for stat in stats if stat), default=0.0)


def _entries(directory: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _numbered(directory: Path, pattern: re.Pattern[str], since: int = 0) -> Iterator[tuple[int, Path]]:
    """Yield the sub-directories that *pattern* names, with their numbers, from *since* on."""
    for entry in _entries(directory):
        if (match := pattern.fullmatch(entry.name)) and int(match[1]) >= since and _is_directory(entry):
            yield int(match[1]), Path(entry.path)


def _matching(directory: Path, pattern: str) -> list[str]:
    return [each.path for each in _entries(directory) if fnmatchcase(each.name, pattern) and _is_regular(each)]


def _walk(directory: Path, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths of the regular files below *directory* whose names end as said."""
    folders = [str(directory)]
    while folders:
        for entry in _entries(folders.pop()):
            if _is_directory(entry):
                folders.append(entry.path)
            elif entry.name.endswith(suffixes) and _is_regular(entry):
                yield entry.path


def _is_regular(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False


def _regular(path: Path) -> os.stat_result | None:
    """Return what is known of a file; `None` of a link, and of what is not there."""
    try:
        stat = path.lstat()
    except (OSError, ValueError):
        return None
    return stat if S_ISREG(stat.st_mode) else None


def _modified(stat: os.stat_result) -> datetime | None:
    try:
        return from_epoch(stat.st_mtime_ns // 10**6 / 1000)
    except (ValueError, OverflowError, OSError):
        return None


def _attempt(number: int, path: Path) -> Attempt | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    born_ns = birth_ns(path)
    begun = cut(datetime.fromtimestamp(born_ns / 10**9, UTC)) if born_ns else None
    return Attempt(number, path, f"{stat.st_dev}:{stat.st_ino}:{born_ns or ''}", begun)
