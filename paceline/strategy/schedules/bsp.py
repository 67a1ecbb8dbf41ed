"""Bulk synchronous: one chunk, which leaves when backward is over.

time = forward + backward + T(all bytes)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.strategy.schedules.traits import ScheduleTraits
from paceline.types import Plan, Profile, Seconds


@dataclass(frozen=True)
class Bsp(ScheduleTraits):
    name: ClassVar[str] = "bsp"
    one_chunk: ClassVar[bool] = True

    def plan(self, profile: Profile, seconds: Seconds) -> Plan:
        return Plan((0, profile.layout.numel))
