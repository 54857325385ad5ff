"""The host's GPUs, as `nvidia-smi` shows them: 0 % for long is the sign of a run that has stopped."""

from __future__ import annotations

import csv
import math
import subprocess
from typing import TYPE_CHECKING

import anyio

from pipeline.events import Sample
from pipeline.sources.base import SideThread, Sight, now

if TYPE_CHECKING:
    from pipeline.events import Event
    from pipeline.sources.base import Emit

ENDPOINT = "nvidia-smi"
ANSWER_S = 10.0
"""It takes seconds where the driver is busy, and never answers where it hangs."""
GPUS = 64
REASON_CHARS = 150
NO_GPU = 6
"""Its exit code if there is no GPU."""

_MIB = 1024.0 * 1024.0
QUANTITIES = {
    "utilization.gpu": ("gpu_utilization_ratio", 0.01),
    "memory.used": ("gpu_memory_used_bytes", _MIB),
    "memory.total": ("gpu_memory_total_bytes", _MIB),
    "ecc.errors.uncorrected.volatile.total": ("gpu_ecc_uncorrected_total", 1.0),
    "temperature.gpu": ("gpu_temperature_celsius", 1.0),
}
"""What is asked for: our name for it, and what to multiply it with."""
QUERY = ",".join(("index", "uuid", *QUANTITIES))
COMMAND = (ENDPOINT, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits")


class Gpus:
    """Asks for figures of each GPU; nothing that it asks changes a GPU."""

    name = f"metrics:{ENDPOINT}"

    def __init__(self, interval_s: float = 30.0, answer_s: float = ANSWER_S) -> None:
        self._interval_s, self._answer_s = interval_s, answer_s
        # the driver may hold a program so that it cannot be killed, and whoever waits for it waits on
        self._thread = SideThread(answer_s + 1)
        self._sight = Sight(self.name)

    async def run(self, emit: Emit) -> None:
        """Emit the figures of each GPU at each interval; raises nothing of its own."""
        while True:
            for event in await self._ask():
                await emit(event)
            await anyio.sleep(self._interval_s)

    async def _ask(self) -> list[Event]:
        try:
            answer = await self._thread.call(self._answer)
        except FileNotFoundError:
            return [*self._sight.change("absent", "nvidia-smi is not installed")]
        except (TimeoutError, subprocess.TimeoutExpired):
            return [*self._sight.change("blind", f"no answer in {self._answer_s:g} s")]
        except OSError as error:
            return [*self._sight.change("blind", f"cannot be run: {error.strerror}")]
        text = answer.stdout.decode("utf-8", "replace")
        samples = parse(text)
        if answer.returncode == NO_GPU or "No devices were found" in text:
            return [*self._sight.change("absent", "no GPU on this host")]
        if answer.returncode or not samples:
            # of several GPUs one may be lost: the figures of the others are good
            return [*self._sight.change("blind", _reason(answer)), *samples]
        return [*self._sight.change("seeing"), *samples]

    def _answer(self) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(  # noqa: S603 - fixed words
            COMMAND,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=self._answer_s,
            check=False,
        )


def parse(text: str) -> list[Sample]:
    """Read what `nvidia-smi` answers to `COMMAND`; of each GPU only the quantities that it can tell."""
    time = now()
    samples: list[Sample] = []
    for row in _rows(text)[:GPUS]:
        for (name, factor), cell in zip(QUANTITIES.values(), row[2:], strict=True):
            value = _number(cell)
            if value is not None:
                labels = {"gpu": row[0], "uuid": row[1]}
                samples.append(Sample(time=time, endpoint=ENDPOINT, name=name, labels=labels, value=value * factor))
    return samples


def _rows(text: str) -> list[list[str]]:
    """Return the lines that are about a GPU; messages stand between them."""
    lines = (line for line in text.replace("\0", "").splitlines() if len(line) < 1000)
    rows = ([cell.strip() for cell in row] for line in lines for row in csv.reader([line]))
    wanted = len(QUANTITIES) + 2
    return [row for row in rows if len(row) == wanted and row[0].isascii() and row[0].isdigit()]


def _number(cell: str) -> float | None:
    """Return the value of a cell; `[N/A]`, `[Not Supported]`, `ERR!` and the like are none."""
    try:
        value = float(cell.split(" ", 1)[0])  # some versions name the unit all the same
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _reason(answer: subprocess.CompletedProcess[bytes]) -> str:
    said = " ".join(answer.stdout.decode("utf-8", "replace").split())
    shown = "".join(char if char.isprintable() else " " for char in said)[:REASON_CHARS]
    return shown or f"nvidia-smi ended with {answer.returncode}"
