"""The GPUs: a stand-in on the path prints what real versions of nvidia-smi do, as no test machine has a GPU."""

from __future__ import annotations

import os
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.events import Sample
from pipeline.sources.gpus import COMMAND, Gpus, parse
from tests.pipeline.sources.watch import Watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ONE = "GPU-5a1e0a53-2c5f-9d3b-8a61-0c2b7a6f1d10"
TWO = "GPU-b7c1ffaa-0f0e-4d54-a3c5-7c3d0f9b2e11"
H100 = f"0, {ONE}, 97, 71234, 81559, 0, 61\n1, {TWO}, 0, 4, 81559, 2, 34\n"
CONSUMER = f"0, {ONE}, 100, 23012, 24564, [N/A], 74\n"
OLD_DRIVER = f"0, {ONE}, [Not Supported], 512, 11441, [Not Supported], 40\n"
BROKEN_SENSOR = f"0, {ONE}, ERR!, 512, 11441, 0, [Unknown Error]\n"
GONE = (
    f"0, {ONE}, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]\n1, {TWO}, 5, 1, 2, 0, 30\n"
)
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n"
)
LOST = (
    "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
)


@asynccontextmanager
async def watching(source: Gpus) -> AsyncIterator[Watch]:
    """Run *source* until the end of the block."""
    watch = Watch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(source.run, watch.emit)
        await watch.until(lambda: bool(watch.states()))
        yield watch
        tasks.cancel_scope.cancel()


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what puts a stand-in on the path that runs the shell commands it is given."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def put(commands: str) -> None:
        new = tmp_path / "new"
        new.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" > "{tmp_path}/asked"\n{commands}\n')
        new.chmod(0o755)
        new.rename(tmp_path / "nvidia-smi")

    return put


def printing(text: str, code: int = 0) -> str:
    """Return shell commands that print *text*."""
    return f"cat <<'END'\n{text}END\nexit {code}"


def values(samples: list[Sample]) -> dict[tuple[str, str], float]:
    """Return the values by GPU and name."""
    return {(sample.labels["gpu"], sample.name): sample.value for sample in samples}


async def test_each_gpu_is_reported_at_each_interval(nvidia_smi: Callable[[str], None], tmp_path: Path) -> None:
    """Use, memory, errors and temperature come in their own units, again and again; only a query is ever run."""
    nvidia_smi(printing(H100))
    async with watching(Gpus(interval_s=0.05)) as watch:
        await watch.until(lambda: len(watch.events) >= 21)
    assert watch.states() == [("seeing", "")]
    samples = [event for event in watch.events if isinstance(event, Sample)]
    assert {sample.endpoint for sample in samples} == {"nvidia-smi"}
    assert samples[0].labels == {"gpu": "0", "uuid": ONE}
    assert values(samples[:10]) == {
        ("0", "gpu_utilization_ratio"): pytest.approx(0.97),
        ("0", "gpu_memory_used_bytes"): 71234 * 2**20,
        ("0", "gpu_memory_total_bytes"): 81559 * 2**20,
        ("0", "gpu_ecc_uncorrected_total"): 0,
        ("0", "gpu_temperature_celsius"): 61,
        ("1", "gpu_utilization_ratio"): 0,
        ("1", "gpu_memory_used_bytes"): 4 * 2**20,
        ("1", "gpu_memory_total_bytes"): 81559 * 2**20,
        ("1", "gpu_ecc_uncorrected_total"): 2,
        ("1", "gpu_temperature_celsius"): 34,
    }
    assert (tmp_path / "asked").read_text() == (
        "--query-gpu=index,uuid,utilization.gpu,memory.used,memory.total,ecc.errors.uncorrected.volatile.total,"
        "temperature.gpu --format=csv,noheader,nounits\n"
    )
    assert COMMAND[0] == "nvidia-smi"


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (CONSUMER, {"gpu_ecc_uncorrected_total"}),
        (OLD_DRIVER, {"gpu_ecc_uncorrected_total", "gpu_utilization_ratio"}),
        (BROKEN_SENSOR, {"gpu_utilization_ratio", "gpu_temperature_celsius"}),
        (f"0, {ONE}, 5 %, 512 MiB, 11441 MiB, 0, 40\n", set()),
        (f"0, {ONE}, nan, -1, inf, 1e999, 40\n", {
            "gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_ecc_uncorrected_total",
        }),
    ],
)  # fmt: skip
def test_what_a_gpu_cannot_tell_is_left_out(text: str, missing: set[str]) -> None:
    """A cell without a number is no figure, and never a zero."""
    names = {
        "gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_ecc_uncorrected_total",
        "gpu_temperature_celsius",
    }  # fmt: skip
    assert {sample.name for sample in parse(text)} == names - missing


def test_of_several_gpus_the_others_are_reported() -> None:
    """A GPU that is lost takes nothing from the other one's figures."""
    assert {sample.labels["gpu"] for sample in parse(GONE)} == {"1"}
    assert {sample.labels["gpu"] for sample in parse(LOST + H100)} == {"0", "1"}


@pytest.mark.parametrize(
    ("commands", "state", "reason"),
    [
        (printing(NO_DRIVER, 9), "blind", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA"),
        (printing(LOST, 15), "blind", "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost. Reboot"),
        (printing('Field "ecc.errors" is not a valid field to query.\n', 2), "blind", 'Field "ecc.errors" is not'),
        (printing("No devices were found\n", 6), "absent", "no GPU on this host"),
        (printing("No devices were found\n"), "absent", "no GPU on this host"),
        (printing(""), "blind", "nvidia-smi ended with 0"),
        ("exec 1>&2; printf 'a\\033[31mb\\000c'; exit 1", "blind", "a [31mb c"),
    ],
)
async def test_no_figures_are_blindness_or_absence(
    nvidia_smi: Callable[[str], None], commands: str, state: str, reason: str
) -> None:
    """A driver that fails is blindness with its own words, no GPU at all is absence."""
    nvidia_smi(commands)
    async with watching(Gpus()) as watch:
        ((found, said),) = watch.states()
    assert (found, said[: len(reason)]) == (state, reason)
    assert len(said) <= 150


async def test_a_lost_gpu_is_blindness_and_the_others_are_seen(nvidia_smi: Callable[[str], None]) -> None:
    """Where the program fails for one GPU, the figures of the others are good."""
    nvidia_smi(printing(LOST + H100, 15))
    async with watching(Gpus()) as watch:
        await watch.until(lambda: len(watch.events) == 11)
    assert [state for state, _ in watch.states()] == ["blind"]


async def test_a_driver_that_hangs_is_blindness_until_it_answers(nvidia_smi: Callable[[str], None]) -> None:
    """No answer in time ends the wait, and the next answer is seen."""
    nvidia_smi("exec sleep 60")
    began_s = time.monotonic()
    async with watching(Gpus(interval_s=0.05, answer_s=0.3)) as watch:
        assert watch.states() == [("blind", "no answer in 0.3 s")]
        assert time.monotonic() - began_s < 5
        nvidia_smi(printing(H100))
        await watch.until(lambda: watch.states()[-1] == ("seeing", ""))


async def test_without_nvidia_smi_gpus_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without the program has no GPUs to be seen."""
    monkeypatch.setenv("PATH", str(tmp_path))
    async with watching(Gpus()) as watch:
        assert watch.states() == [("absent", "nvidia-smi is not installed")]


@given(st.text(max_size=300) | st.lists(st.text(max_size=8), min_size=7, max_size=7).map(", ".join))
def test_whatever_it_prints_is_read_or_not(text: str) -> None:
    """No text breaks the reader, and no figure is negative or without end."""
    assert all(0 <= sample.value < float("inf") for sample in parse(text))
