"""Wait-free backpropagation: each tensor is one message, which leaves as soon as its gradient is ready.

H. Zhang et al., "Poseidon: An Efficient Communication Architecture for Distributed Deep Learning on GPU
Clusters", USENIX ATC 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.strategy.schedules.traits import ScheduleTraits
from paceline.types import Plan, Profile, Seconds


@dataclass(frozen=True)
class Wfbp(ScheduleTraits):
    name: ClassVar[str] = "wfbp"

    def plan(self, profile: Profile, seconds: Seconds) -> Plan:
        layout = profile.layout
        inner = sorted({at for at in layout.offsets[1:-1] if 0 < at < layout.offsets[-1]})
        return Plan((0, *inner, layout.numel))
