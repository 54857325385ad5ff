"""
Command lines of a run's processes, and the role each says.

A title set by setproctitle replaces the whole command line. It is set after the
imports, so for up to a minute a process still shows the program it was started as;
torchrun and spawned children never set one. Matched whole, never as part of a line:
an editor or a `tail` with such a name in its arguments is no part of the run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.events import Role

_TITLES: dict[str, Role] = {
    "PRIME-RL::Launcher": "launcher",
    "PRIME-RL::SFT": "launcher",
    "PRIME-RL::Trainer": "trainer",
    "PRIME-RL::SFTTrainer": "trainer",
    "PRIME-RL::Orchestrator": "orchestrator",
    "PRIME-RL::Inference": "inference",
    "PRIME-RL::EnvServer": "env_server",
    "PRIME-RL::Evaluator": "evaluator",
    "PRIME-RL::Evals": "evaluator",
    "Verifiers::EnvServer": "env_server",
}
_TITLE_PATTERNS: tuple[tuple[re.Pattern[str], Role], ...] = (
    (re.compile(r"Verifiers::EnvWorker\d*"), "env_worker"),
    (re.compile(r"vllm::\w+", re.IGNORECASE), "inference"),
)
_PROGRAMS: dict[str, Role] = {
    "rl": "launcher",
    "sft": "launcher",
    "orchestrator": "orchestrator",
    "inference": "inference",
    "vllm-router": "inference",
    "env-server": "env_server",
    "evaluator": "evaluator",
    "evals": "evaluator",
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "prime_rl.trainer.rl.train": "trainer",
    "prime_rl.trainer.sft.train": "trainer",
    "prime_rl.entrypoints.rl": "launcher",
    "prime_rl.entrypoints.sft": "launcher",
}
_SPAWNED: dict[Role, Role] = {"env_server": "env_worker", "inference": "inference"}
"""What the children are that multiprocessing starts and that never say what they are."""
_FORKING: frozenset[Role | None] = frozenset({"orchestrator", "trainer"})
"""Whose forked children (data loaders, executors) keep the title without being one more of it."""
_INTERPRETER = re.compile(r"python[\d.]*")
_OPTIONS_WITH_VALUE = frozenset({"-W", "-X"})


def role(cmdline: Sequence[str], parent: Role | None) -> Role | None:
    """Return the role of a process with these arguments and a parent of that role; `None` if it has none."""
    arguments = [argument for argument in cmdline if argument]  # the rest of a title is NULs
    if not arguments or parent == "env_worker":  # whose children are programs of the environment
        return None
    if titled := _titled(arguments[0]):
        return None if titled == parent and parent in _FORKING else titled
    if _is_spawned(arguments):
        return _SPAWNED.get(parent) if parent else None
    return _PROGRAMS.get(_program(arguments))


def _titled(title: str) -> Role | None:
    patterns = (role for pattern, role in _TITLE_PATTERNS if pattern.fullmatch(title))
    return _TITLES.get(title) or next(patterns, None)


def _is_spawned(arguments: list[str]) -> bool:
    return arguments[-1] == "--multiprocessing-fork" and any("spawn_main(" in argument for argument in arguments)


def _program(arguments: list[str]) -> str:
    """Return the name of the script or module that runs, past an interpreter and its options."""
    name = _base(arguments[0])
    if not _INTERPRETER.fullmatch(name):
        return name
    operands = _past_options(arguments[1:])
    return _base(operands[0]) if operands else ""


def _past_options(words: list[str]) -> list[str]:
    """Return *words* from the first that is no option; a module is the script, code given as text is none."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        if words[place] == "-c":
            return []
        place += 2 if words[place] in _OPTIONS_WITH_VALUE else 1
    return words[place:]


def _base(path: str) -> str:
    return path.rpartition("/")[2]
