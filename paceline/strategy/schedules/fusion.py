"""Tensor fusion: a chunk is closed when its bytes reach a cap, so that small tensors travel together.

A. Sergeev and M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import BadMember
from paceline.strategy.schedules.traits import ScheduleTraits
from paceline.types import Plan, Profile, Seconds


@dataclass(frozen=True)
class Fusion(ScheduleTraits):
    """Fuses tensors up to `mb` megabytes of 1,048,576 bytes, as DDP's bucket_cap_mb does."""

    mb: float = 25.0

    name: ClassVar[str] = "fusion"

    def __post_init__(self) -> None:
        if not self.mb > 0:
            raise BadMember(f"fusion(mb={self.mb:g})", why="a chunk needs more than 0 MB", remedy="fusion(mb=25)")

    def plan(self, profile: Profile, seconds: Seconds) -> Plan:
        layout = profile.layout
        cap = self.mb * 2**20 / layout.itemsize
        cuts = [0]
        for end in layout.offsets[1:]:
            if end - cuts[-1] >= cap:
                cuts.append(end)
        if len(cuts) > 1 and layout.offsets[-1] == cuts[-1]:
            cuts.pop()  # the tail of flags joins the last chunk
        return Plan((*cuts, layout.numel))
