"""The rule book: what is looked up by an event, and that the code holds no knowledge of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rules
from rules.load import decode
from rules.rule_file import RuleFile
from rules.rulebook import Rulebook, _glob

PACKAGE = Path(rules.__file__).parent
CONTRACTS = Path(__file__).parents[2].parent / "shared" / "contracts.md"
WORDING = re.compile(
    r"(?i)prime.?rl|verifiers|vllm|torch|loguru|nccl|cuda|(?<![a-z])xid|fsdp|slurm|srun|wandb|broadcast|orchestrator"
    r"|trainer|inference|env_server|env_worker|evaluator|router|kv.cache|(?<![a-z])(loss|grad_|entropy|oom|sig[kti])"
)


def rule(mode: str, pattern: str, name: str = "") -> str:
    """Return a rule about a text."""
    return f"""
    [[rule]]
    name = "{name or mode}"
    failure_mode = "{mode}"
    summary = ""
    on = {{ log = {{ pattern = "{pattern}" }} }}
    escalate = [{{ severity = "critical", immediately = true }}]
    """


def said(path: Path) -> list[tuple[int, str]]:
    """Return what code names or writes; docstrings are left out, and the words that types of events consist of."""
    tree = ast.parse(path.read_text("utf-8"))
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(node.value)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
            left_out.update(ast.walk(node.slice))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out:
            found.append((node.lineno, node.value))
        elif isinstance(node, ast.Name | ast.Attribute | ast.arg):
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else node.arg
            found.append((node.lineno, name))
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_no_knowledge_of_a_run_stands_in_code(path: Path) -> None:
    """What prime-rl writes, and whose it is, stands in TOML: no name and no text of the code knows of it."""
    assert [f"{path.name}:{line}: {text}" for line, text in said(path) if WORDING.search(text)] == []


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_no_failure_mode_stands_in_code(path: Path) -> None:
    """The failure modes of the contract are data: not even a docstring of the code names one."""
    if not CONTRACTS.is_file():
        pytest.skip("the contract is not beside the project")
    section = CONTRACTS.read_text("utf-8").split("## Failure modes")[1].split("What the close ones mean")[0]
    slugs = {slug for slug in re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)*)`", section) if slug != "stall"}
    assert len(slugs) > 60
    text = path.read_text("utf-8")
    assert [slug for slug in sorted(slugs) if re.search(rf"(?<![\w-]){slug}(?![\w-])", text)] == []


def test_later_rules_replace_earlier_ones() -> None:
    """Of rules with one name the last counts; a disabled one is left out."""
    texts = [rule("old", "a", "a"), rule("new", "a", "a"), rule("b", "a")]
    book = Rulebook([decode(text, "x.toml", RuleFile) for text in texts], disabled=["b"])
    assert {name: rule.failure_mode for name, rule in book.rules.items()} == {"a": "new"}
    assert [rule.name for rule in book.matches("a", "trainer")[1]] == ["a"]


def test_whose_log_a_file_is() -> None:
    """The first table that fits a path says its component, labels and group; without one it is nobody's."""
    text = """
    [[file]]
    path = '^envs/(?P<env>.+)\\.log$'
    component = "env"
    [[file]]
    path = '\\.log$'
    component = "launcher"
    copies = "terminal"
    """
    book = Rulebook([decode(text, "x.toml", RuleFile)])
    origin = book.origin("envs/math.log")
    assert origin is not None
    assert (origin.component, origin.labels, origin.copies) == ("env", {"env": "math"}, None)
    job = book.origin("job_7.log")
    assert job is not None
    assert (job.component, job.copies) == ("launcher", "terminal")
    assert book.origin("notes.txt") is None


def test_a_milestone_is_of_its_component() -> None:
    """A milestone is passed by a record of its components only."""
    text = '[[milestone]]\nname = "m"\ncomponent = ["trainer"]\npattern = "done"\n'
    book = Rulebook([decode(text, "x.toml", RuleFile)])
    assert [milestone.name for milestone in book.matches("done", "trainer")[0]] == ["m"]
    assert book.matches("done", "env") == ([], [], [], [])


def test_causes_are_asked_by_mode_and_component() -> None:
    """A cascade holds between what fits both of its sides; a list that is left out fits everything."""
    text = """
    [[cascade]]
    cause = { mode = ["a"], component = ["inference"] }
    effect = { component = ["trainer"] }
    """
    book = Rulebook([decode(text, "x.toml", RuleFile)])
    assert book.causes(("a", "inference"), ("b", "trainer"))
    assert not book.causes(("a", "env"), ("b", "trainer"))
    assert not book.causes(("b", "inference"), ("b", "trainer"))
    assert not book.causes(("a", "inference"), ("b", "env"))


@given(wanted=st.lists(st.sampled_from("ab*/"), max_size=8), name=st.lists(st.sampled_from("ab/"), max_size=10))
def test_stars_stand_for_anything(wanted: list[str], name: list[str]) -> None:
    """A metric's name with stars fits what the regular expression with `.*` in their place fits."""
    pattern = ".*".join(map(re.escape, "".join(wanted).split("*")))
    assert _glob("".join(wanted), "".join(name)) is (re.fullmatch(pattern, "".join(name)) is not None)


def test_a_million_metric_names_do_no_harm() -> None:
    """The names that rules were looked up for are not kept without bound."""
    text = '[[rule]]\nname = "x"\nfailure_mode = "x"\nsummary = ""\non = { metric = { name = ["a/*/b"] } }\n'
    escalate = 'escalate = [{ severity = "info", immediately = true, nan = true }]'
    book = Rulebook([decode(text + escalate, "x.toml", RuleFile)])
    for i in range(50_000):
        assert bool(book.of_metric(f"a/{i}/{'bc'[i % 2]}")) is (i % 2 == 0)
    assert len(book._metrics) <= 20_000


def test_other_files_give_another_verdict(watch: Callable[..., Any]) -> None:
    """The same lines, judged by other rules, phases and cascades, lead to another incident and another phase."""
    hamster, light = rule("hamster-gone", "hamster"), rule("dark", "light")

    def verdict(*texts: str) -> tuple[list[str], str, str]:
        run = watch(*texts)
        run.log(0, "the hamster left its wheel")
        run.log(1, "the light went out")
        run.log(2, "good night")
        summary = run.summary
        return [one.failure_mode for one in summary.incidents], summary.health, summary.phase

    explained = '[[cascade]]\ncause = { mode = ["hamster-gone"] }\neffect = { mode = ["dark"] }\n'
    end = '[[milestone]]\nname = "night"\npattern = "good night"\n'
    end += '[[phase]]\nname = "%s"\nfrom = ["starting"]\nwhen = [["night"]]\n'
    assert verdict(hamster, light) == (["dark"], "Degraded", "starting")
    assert verdict(hamster, light, explained) == (["hamster-gone"], "Degraded", "starting")
    assert verdict(rule("escape", "hamster"), end % "failed") == (["escape"], "Down", "failed")
    assert verdict(hamster, end % "finished") == (["hamster-gone"], "Healthy", "finished")
    assert verdict(end % "running") == ([], "Healthy", "running")
