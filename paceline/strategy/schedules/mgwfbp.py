"""Merged wait-free backpropagation: cuts that let the last chunk arrive as early as possible on the measured link.

    F[0] = 0,  F[j] = min over i < j of max(F[i], r_j) + a + b (M_j - M_i)

r_j is when the gradient of tensor j is ready, M_j the bytes up to it, and a + b n the time of a chunk of n bytes (less
with a compressor). Layer times and link are measured in the first steps of the run, or come from a file; until they are
known there is one chunk. `greedy` is the published rule, for comparison; it is not optimal in its own model.

S. Shi, X. Chu and B. Li, "MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD Algorithms",
INFOCOM 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import BadMember
from paceline.strategy.schedules import _merging as merging
from paceline.strategy.schedules.traits import ScheduleTraits
from paceline.types import Plan, Profile, Seconds

RULES = {"exact": merging.best, "greedy": merging.greedy}


@dataclass(frozen=True)
class MgWfbp(ScheduleTraits):
    rule: str = "exact"

    name: ClassVar[str] = "mgwfbp"
    measures: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise BadMember(f"mgwfbp({self.rule})", why="it merges exact or greedy", remedy="mgwfbp")

    def __str__(self) -> str:
        return self.name if self.rule == "exact" else f"{self.name}({self.rule})"

    def plan(self, profile: Profile, seconds: Seconds) -> Plan:
        layout = profile.layout
        if not profile.ready:
            return Plan((0, layout.numel))
        sizes = [slot.numel * layout.itemsize for slot in layout.slots]
        a = seconds(0)
        b = (seconds(layout.nbytes) - a) / layout.nbytes
        groups = RULES[self.rule](profile.ready, sizes, a, b)
        inner = {layout.offsets[end] for end in groups[:-1]} - {0, layout.offsets[-1]}
        return Plan((0, *sorted(inner), layout.numel))
