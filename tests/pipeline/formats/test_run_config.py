"""What a run's resolved configs say of it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.events import Deployment, RunConfigured
from pipeline.formats.run_config import configured
from pipeline.times import EPOCH

PORTS = {
    "router": 8000,
    "engine": 8100,
    "trainer metrics": 9400,
    "weight broadcast": 29501,
    "rollout transport": 5555,
    "env servers": 5000,
}
ARCHIVE = Path(__file__).parents[3].parent / "shared" / "golden.tar.gz"


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack what the real programs wrote."""
    if not ARCHIVE.exists():
        pytest.skip("the golden data is not beside the project")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(path := tmp_path_factory.mktemp("golden"), filter="data")
    return path / "golden"


def read(**configs: Any) -> RunConfigured:
    """Read configs that are given as what they hold."""
    return configured({f"{name}.json": json.dumps(config).encode() for name, config in configs.items()}, EPOCH)


def files(directory: Path) -> dict[str, bytes]:
    """Read the files below a directory of configs."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*.json")}


@pytest.mark.parametrize(
    ("era", "train", "evaluated"),
    [
        ("trace-era", ["reverse-text", "duo-reverse"], ["alphabet-sort", "solver-judge", "proposer-solver"]),
        ("episode-era", ["reverse-text", "proposer-solver"], ["alphabet-sort", "solver-judge"]),
    ],
)
def test_golden_configs(golden: Path, era: str, train: list[str], evaluated: list[str]) -> None:
    """Of a real run everything is found, whether the components' configs or only the launcher's are there."""
    local = configured(files(golden / era / "run" / "configs"), EPOCH)
    assert local == RunConfigured(
        time=EPOCH,
        name="reverse-mix-0821",
        model="Qwen/Qwen3-0.6B",
        max_steps=8,
        batch_size=16,
        group_size=4,
        seq_len=2048,
        train_envs=train,
        eval_envs=evaluated,
        checkpoint_interval=2,
        eval_interval=4,
        resume_step=4,
        engine_urls=["http://localhost:8100/metrics"],
        trainer_metrics_url="http://localhost:9400/metrics",
        max_off_policy_steps=local.max_off_policy_steps,
        ports=PORTS,
    )
    assert local.max_off_policy_steps is not None
    whole = configured(files(golden / era / "slurm-single-node-dry-run" / "configs"), EPOCH)
    assert (whole.name, whole.max_steps, whole.batch_size, whole.resume_step) == ("reverse-mix-0821", 8, 16, None)
    assert whole.engine_urls == local.engine_urls
    assert whole.trainer_metrics_url == local.trainer_metrics_url
    assert whole.deployment == Deployment(kind="single_node", train_gpus=2, infer_gpus=1, gpus_per_node=8)
    assert whole.ports == PORTS


def test_several_nodes_are_told_by_the_batch_script() -> None:
    """A run on several nodes has no config of the whole: its script says on how many."""
    script = b"#!/bin/bash\nexport NUM_TRAIN_NODES=4\n  export NUM_INFER_NODES='2'\nexport GPUS_PER_NODE=8 # all\n"
    script += b"export NUM_TRAIN_NODESX=9\n"
    found = configured({"rl.sbatch": script, "trainer.json": b"{}"}, EPOCH)
    assert found.deployment == Deployment(kind="multi_node", train_nodes=4, infer_nodes=2, gpus_per_node=8)
    assert configured({"rl.sbatch": b"export NUM_TRAIN_NODES=many\nsrun x"}, EPOCH).deployment is None
    whole = {"deployment": {"type": "multi_node", "num_train_nodes": 2, "num_infer_nodes": None, "later": [1]}}
    assert read(rl=whole).deployment == Deployment(kind="multi_node", train_nodes=2)


def test_nothing_is_known_without_configs() -> None:
    """Without files everything is unknown."""
    assert configured({}, EPOCH) == RunConfigured(time=EPOCH)


def test_off_is_unknown() -> None:
    """What is null is off: an endless run without checkpoints, evaluations and metrics server."""
    trainer = {"max_steps": None, "ckpt": None, "resume": None, "metrics_server": None}
    orchestrator = {"max_steps": None, "ckpt": None, "eval": None, "batch_size": None, "token_batch_size": 65536}
    assert read(trainer=trainer, orchestrator=orchestrator) == RunConfigured(time=EPOCH)


@pytest.mark.parametrize("wrong", ["8", True, -1, 8.5, [8], {"a": 8}, 10**30])
def test_what_is_not_a_number_is_unknown(wrong: object) -> None:
    """A value of another type than it used to have is unknown, and disturbs nothing else."""
    found = read(orchestrator={"max_steps": wrong, "batch_size": 16})
    assert (found.max_steps, found.batch_size) == (None, 16)


def test_names_of_environments() -> None:
    """An environment without a name is called by its package and taskset, as prime-rl does."""
    sources = [
        {"name": "mine", "env": {"id": "", "taskset": {"id": "math"}}},
        {"name": None, "env": {"id": "", "taskset": {"id": "math"}}},
        {"env": {"id": "duo", "taskset": {"id": "math"}}},
        {"env": {"id": "duo"}},
        {},
        "odd",
    ]
    assert read(orchestrator={"train": {"source": sources}}).train_envs == ["mine", "math", "duo+math", "duo"]


@pytest.mark.parametrize(
    ("output_dir", "name"),
    [("/data/outputs/run-1", "run-1"), ("/data/outputs/run-1/", "run-1"), ("run-1", "run-1"), ("", None)],
)
def test_the_name_of_a_local_run(output_dir: str, name: str | None) -> None:
    """Where no config names the run, its directory does."""
    assert read(orchestrator={"output_dir": output_dir}).name == name


def test_an_sft_run() -> None:
    """A fine-tuning run has one config, with evaluations of its own."""
    found = read(
        sft={
            "run": {"name": "sft-1"},
            "model": {"name": "m"},
            "max_steps": 500,
            "ckpt": {"interval": 100},
            "eval": {"interval": 50, "source": [{"name": "aime", "interval": 25}, {"name": "gpqa", "interval": 50}]},
        }
    )
    assert (found.name, found.model, found.max_steps, found.checkpoint_interval) == ("sft-1", "m", 500, 100)
    assert (found.eval_envs, found.eval_interval) == (["aime", "gpqa"], 25)


@pytest.mark.parametrize(
    ("client", "inference", "urls"),
    [
        ({"admin_base_url": ["http://a:8100/v1", "http://b:8100/v1/"]}, {}, ["http://a:8100/metrics", "http://b:8100/metrics"]),
        ({"admin_base_url": "http://a:8100/v1"}, {}, ["http://a:8100/metrics"]),
        ({"admin_base_url": ["http://a/v1", "http://a/v1"]}, {}, ["http://a/metrics"]),
        ({"admin_base_url": ["file:///etc/passwd", 7]}, {"backend_port": 8100}, ["http://localhost:8100/metrics"]),
        ({}, {"backend_port": 8101, "server": {"port": 8000}}, ["http://localhost:8101/metrics"]),
        ({}, {"server": {"port": 8000}}, ["http://localhost:8000/metrics"]),
        ({"base_url": "http://a:8000/v1"}, {}, []),
    ],
)  # fmt: skip
def test_pages_of_the_engines(client: dict[str, Any], inference: dict[str, Any], urls: list[str]) -> None:
    """The engines' pages are where the orchestrator controls them, else at the port of the local engine."""
    assert read(orchestrator={"model": {"client": client}}, inference=inference).engine_urls == urls


def test_a_config_without_end_is_read_in_part() -> None:
    """What is kept of it is bounded, whatever a run writes there."""
    sources = [{"name": f"{number}{'x' * 10_000}"} for number in range(10_000)]
    servers = [f"http://10.0.{number // 256}.{number % 256}:8000/v1" for number in range(10_000)]
    client = {"admin_base_url": ["http://" + "x" * 10_000, *servers]}
    found = read(orchestrator={"train": {"source": sources}, "model": {"name": "y" * 10_000, "client": client}})
    assert (len(found.train_envs), len(found.train_envs[0]), len(found.model or "")) == (500, 500, 500)
    assert len(found.engine_urls) == 499, "what is cut is no address"


def test_old_configs() -> None:
    """An old run's TOML is read for what it says alike."""
    toml = b'max_steps = 30\nbatch_size = 64\nseq_len = 2048\n[[env]]\nid = "reverse-text"\n[model]\nname = "m"\n'
    found = configured({"orchestrator.toml": toml, "trainer.toml": b"max_steps = 'odd"}, EPOCH)
    assert (found.max_steps, found.batch_size, found.model, found.train_envs) == (30, 64, "m", ["reverse-text"])


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 100_000, b"{}", b"[]", b"1e999", b'"\\ud800"'])
@pytest.mark.parametrize("kind", ["json", "toml"])
def test_a_broken_config_is_as_good_as_none(data: bytes, kind: str) -> None:
    """A config that cannot be read disturbs no other."""
    other = json.dumps({"max_steps": 8}).encode()
    assert configured({f"orchestrator.{kind}": data, "trainer.json": other}, EPOCH).max_steps == 8


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["source", "env", "id", "name", "interval", "client", "admin_base_url", "port", "host", "step"]), inner),
    max_leaves=8,
)  # fmt: skip
TOPS = st.sampled_from(["train", "eval", "model", "ckpt", "resume", "metrics_server", "output_dir", "run", "env"])


@given(st.dictionaries(TOPS, JSON), st.sampled_from(["rl", "sft", "trainer", "orchestrator", "inference"]))
def test_no_config_raises(config: dict[str, Any], name: str) -> None:
    """Whatever stands in a config, reading it does not raise."""
    read(**{name: config})
