"""Try a few plans for a few steps each and keep the fastest.

    step   0       1 2 3           4 .. 7         8 .. 11       12 ...
           order   layer times     candidate 1    candidate 2   the fastest so far, from then on

Candidates are ordered from plain to special, and a later one must be clearly faster to win; rank 0's clock decides,
so that all ranks choose alike. `auto(crossing=true)` tries schedules that cross the step instead: priority with several
values of partition and credit, and dear with two sizes, unless the exchange has no two phases or values are compressed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.protocols import Schedule
from paceline.strategy.schedules.dear import Dear
from paceline.strategy.schedules.fusion import Fusion
from paceline.strategy.schedules.mgwfbp import MgWfbp
from paceline.strategy.schedules.priority import Priority
from paceline.strategy.schedules.traits import ScheduleTraits
from paceline.types import Plan, Profile, Seconds

MARGIN = 0.02  # share by which a later candidate must be faster


@dataclass(frozen=True)
class Auto(ScheduleTraits):
    crossing: bool = False

    name: ClassVar[str] = "auto"
    measures: ClassVar[bool] = True

    @property
    def crosses_step(self) -> bool:
        return self.crossing

    @property
    def cuts_tensors(self) -> bool:
        return self.crossing

    def plan(self, profile: Profile, seconds: Seconds) -> Plan:
        """Return the plan before any trial: the merge that the model of the link recommends."""
        return MgWfbp().plan(profile, seconds)

    def candidates(self) -> tuple[Schedule, ...]:
        if self.crossing:
            led = (Priority(), Priority(4, 8), Priority(1, 4), Priority(16, 32), Priority(0.25, 2))
            return (*led, Dear(), Dear(2.5))
        return (Fusion(), MgWfbp(), Fusion(4), Fusion(64), Fusion(1))


def choose(seconds: Sequence[float]) -> int:
    """Return the index of the candidate to keep."""
    best = 0
    for k, value in enumerate(seconds):
        if value < seconds[best] * (1 - MARGIN):
            best = k
    return best
