"""What is played, how long, and when the fault strikes."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

from pipeline.demo import DURATION_S
from pipeline.simulator.__main__ import LIVE_PATIENCE_S, LIVE_STEPS, SLOW_PATIENCE_S, SLOW_STEPS
from pipeline.simulator.attempts import simulate
from pipeline.simulator.plan import Fault, Plan
from pipeline.simulator.player import paced

SETTLE_S = 5.0
"""After the end of the play: what is still to be said is said by then."""


@dataclass(frozen=True, kw_only=True)
class Show:
    """A play of the simulator."""

    fault: Fault
    duration_s: float | None
    """As asked for; not set where the speed alone decides."""
    speed: float | None
    lasts_s: float
    """How long the play takes."""
    strikes_s: float
    """When the fault strikes after the launch; infinite where none does."""

    @property
    def options(self) -> list[str]:
        """Return what the simulator is told."""
        told = ["--live", "--fault", self.fault.value]
        told += ["--duration", str(self.duration_s)] if self.duration_s else []
        return told + (["--speed", str(self.speed)] if self.speed else [])


def planned(fault: Fault, duration_s: float | None, speed: float | None) -> Show:
    """
    Return the play that is asked for; without a speed all of the run fits into the duration.

    Raises:
        ValueError: The simulator has no such speed.

    """
    if speed is None:
        duration_s = duration_s or DURATION_S
    plan = Plan(
        fault=fault,
        steps=SLOW_STEPS.get(fault, LIVE_STEPS),
        patience_s=SLOW_PATIENCE_S.get(fault, LIVE_PATIENCE_S),
        speed=speed or 1.0,
    )
    if speed is None and duration_s is not None:
        plan = paced(plan, duration_s)
    attempts = simulate(plan)
    lasts_s = min(plan.lasts_s(attempts[-1].ends_s), duration_s or inf)
    strikes_s = plan.lasts_s(attempts[0].fate.strikes_s)
    return Show(
        fault=fault,
        duration_s=duration_s,
        speed=speed,
        lasts_s=lasts_s,
        strikes_s=strikes_s if isfinite(strikes_s) and strikes_s < lasts_s else inf,
    )
