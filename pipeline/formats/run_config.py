"""
The resolved configs of a run: `configs/*.json`, or `*.toml` of old runs.

Untyped on purpose: they are prime-rl's own and change with it. What is absent, or is
not what it used to be, is unknown.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from pipeline.events import Deployment, RunConfigured
from pipeline.formats.jsonl import MALFORMED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

Files: TypeAlias = "Mapping[str, bytes]"
"""Contents by name below `configs/`: `trainer.json`, `envs/train/math.json`; and of batch scripts: `rl.sbatch`."""

_WHOLE = ("rl", "sft")
_LARGEST = 2**53
_LONGEST = 500
_MOST = 500
"""Characters and names that are read: who watches keeps what a run says of itself for as long as it runs."""
_EXPORT = re.compile(rb"(?m)^\s*export (NUM_TRAIN_NODES|NUM_INFER_NODES|GPUS_PER_NODE)=[\"']?(\d{1,6})\b")
_PORTS = {
    "router": ("inference", "server.port"),
    "engine": ("inference", "backend_port"),
    "trainer metrics": ("trainer", "metrics_server.port"),
    "weight broadcast": ("trainer", "weight_broadcast.port"),
    "rollout transport": ("orchestrator", "rollout_transport.port"),
    "env servers": ("orchestrator", "env_server_base_port"),
}


class _Configs:
    """The configs of one launch, by component."""

    def __init__(self, files: Files) -> None:
        self._whole = [_read(files, name) for name in _WHOLE]
        self.trainer = self._component(files, "trainer")
        self.orchestrator = self._component(files, "orchestrator")
        self.inference = self._component(files, "inference")

    def _component(self, files: Files, name: str) -> object:
        """Return a component's own file, else its table in the launcher's."""
        return _read(files, name) or next(filter(None, (_at(whole, name) for whole in self._whole)), None)

    def every(self, path: str) -> list[object]:
        """Return what stands at *path*, the most telling first."""
        return [_at(config, path) for config in (self.orchestrator, self.trainer, *self._whole)]

    def whole(self, path: str) -> list[object]:
        """Return what stands at *path* of the launcher's own configs."""
        return [_at(config, path) for config in self._whole]


def configured(files: Files, time: datetime) -> RunConfigured:
    """Return what *files* say about the run, as an event of *time*."""
    configs = _Configs(files)
    orchestrator, trainer = configs.orchestrator, configs.trainer
    train_sources = _sources(configs, "train.source", "env")
    eval_sources = _sources(configs, "eval.source", "eval.env")
    return RunConfigured(
        time=time,
        name=_name(configs),
        model=_text(*configs.every("model.name"), _at(configs.inference, "vllm.model")),
        max_steps=_count(*configs.every("max_steps")),
        batch_size=_count(_at(orchestrator, "batch_size")),
        group_size=_count(_at(orchestrator, "group_size"), *(table.get("group_size") for table in train_sources)),
        seq_len=_count(*configs.every("seq_len"), _at(trainer, "model.seq_len")),
        train_envs=_env_names(train_sources),
        eval_envs=_env_names(eval_sources),
        checkpoint_interval=_count(_at(trainer, "ckpt.interval"), *configs.every("ckpt.interval")),
        eval_interval=_eval_interval(configs, eval_sources),
        resume_step=_count(*configs.every("resume.step"), *configs.every("ckpt.resume_step")),
        engine_urls=_engine_urls(configs),
        trainer_metrics_url=_trainer_metrics_url(trainer),
        max_off_policy_steps=_count(_at(orchestrator, "max_off_policy_steps")),
        deployment=_deployment(configs, _exported(files)),
        ports=_ports(configs),
    )


def _read(files: Files, name: str) -> object:
    try:
        if (data := files.get(f"{name}.json")) is not None:
            return msgspec.json.decode(data)
        if (data := files.get(f"{name}.toml")) is not None:
            return tomllib.loads(data.decode())
    except MALFORMED:
        pass
    return None


def _at(config: object, path: str) -> object:
    """Return what stands at the dotted *path*, `None` if nothing does."""
    for key in path.split("."):
        config = config.get(key) if isinstance(config, dict) else None
    return config


def _text(*values: object) -> str | None:
    return next((value[:_LONGEST] for value in values if isinstance(value, str) and value), None)


def _count(*values: object) -> int | None:
    counts = (value for value in values if isinstance(value, int) and not isinstance(value, bool))
    return next((count for count in counts if 0 <= count <= _LARGEST), None)


def _sources(configs: _Configs, *paths: str) -> list[dict[str, Any]]:
    """Return the tables of the environments, which old runs had at the last of *paths*."""
    values = (value for path in paths for value in configs.every(path))
    found: list[Any] = next((value for value in values if isinstance(value, list)), [])
    return [source for source in found if isinstance(source, dict)]


def _name(configs: _Configs) -> str | None:
    run_dirs = (_text(_at(config, "output_dir")) for config in (configs.orchestrator, configs.trainer))
    names = (run_dir.rstrip("/").rpartition("/")[2] for run_dir in run_dirs if run_dir)
    return _text(*configs.whole("run.name"), *names)


def _env_names(sources: list[dict[str, Any]]) -> list[str]:
    return [name for source in sources[:_MOST] if (name := _env_name(source))]


def _env_name(source: dict[str, Any]) -> str | None:
    """Return the name prime-rl resolves for an environment that is not given one."""
    ids = (_text(_at(source, "env.id")), _text(_at(source, "env.taskset.id")))
    return _text(source.get("name"), "+".join(filter(None, ids)), source.get("id"))


def _eval_interval(configs: _Configs, sources: list[dict[str, Any]]) -> int | None:
    """Return the steps between evaluations, of the most frequent one."""
    each = [interval for source in sources if (interval := _count(source.get("interval")))]
    return min(each) if each else _count(*configs.every("eval.interval"))


def _engine_urls(configs: _Configs) -> list[str]:
    admin = _at(configs.orchestrator, "model.client.admin_base_url")
    given = admin[:_MOST] if isinstance(admin, list) else [admin]
    bases = [base for base in given if isinstance(base, str) and len(base) <= _LONGEST]
    urls = [f"{base.rstrip('/').removesuffix('/v1')}/metrics" for base in bases if base.startswith(("http:", "https:"))]
    port = _count(_at(configs.inference, "backend_port"), _at(configs.inference, "server.port"))
    if not urls and port:
        urls = [f"http://localhost:{port}/metrics"]
    return list(dict.fromkeys(urls))


def _deployment(configs: _Configs, exported: dict[str, int]) -> Deployment | None:
    """Return on how much it runs: of several nodes the batch script alone tells."""
    table = next((found for found in configs.whole("deployment") if isinstance(found, dict)), {})
    kind = _text(table.get("type")) or ("multi_node" if "NUM_TRAIN_NODES" in exported else None)
    if kind is None:
        return None
    return Deployment(
        kind=kind,
        train_nodes=_count(table.get("num_train_nodes"), exported.get("NUM_TRAIN_NODES")),
        infer_nodes=_count(table.get("num_infer_nodes"), exported.get("NUM_INFER_NODES")),
        train_gpus=_count(table.get("num_train_gpus")),
        infer_gpus=_count(table.get("num_infer_gpus")),
        gpus_per_node=_count(table.get("gpus_per_node"), exported.get("GPUS_PER_NODE")),
    )


def _exported(files: Files) -> dict[str, int]:
    """Return the numbers that the batch script exports."""
    scripts = b"\n".join(data for name, data in sorted(files.items()) if name.endswith(".sbatch"))
    return {name.decode(): int(value) for name, value in _EXPORT.findall(scripts)}


def _ports(configs: _Configs) -> dict[str, int]:
    known = {name: _count(_at(getattr(configs, component), path)) for name, (component, path) in _PORTS.items()}
    return {name: port for name, port in known.items() if port}


def _trainer_metrics_url(trainer: object) -> str | None:
    server = _at(trainer, "metrics_server")
    if not isinstance(server, dict):
        return None
    host, port = _text(server.get("host")) or "localhost", _count(server.get("port")) or 8000
    if host in {"0.0.0.0", "::"}:  # noqa: S104 (asked about, not bound)
        host = "localhost"
    return f"http://{host}:{port}/metrics"
