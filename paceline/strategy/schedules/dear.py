"""Reduce-scatter while backward runs, all-gather while the next forward does.

    backward   g4 g3    g2 g1    |  forward  x1 x2    x3 x4
    link       [RS 43]  [RS 21]     [AG 21]  [AG 43]            second halves in the order of need

An all-reduce is a reduce-scatter and an all-gather. Only the first needs gradients; the next forward needs only the
second. Tensors are fused to chunks of `mb` MB, as schedule fusion does. Each layer's forward waits for its own
parameters and updates them.

L. Zhang, S. Shi, X. Chu et al., "DeAR: Accelerating Distributed Deep Learning with Fine-Grained All-Reduce
Pipelining", ICDCS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import BadMember
from paceline.strategy.schedules.fusion import Fusion
from paceline.strategy.schedules.traits import ScheduleTraits
from paceline.types import Plan, Profile, Seconds


@dataclass(frozen=True)
class Dear(ScheduleTraits):
    mb: float = 10.0

    name: ClassVar[str] = "dear"
    crosses_step: ClassVar[bool] = True
    decouples: ClassVar[bool] = True
    measures: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.mb > 0:
            raise BadMember(f"dear(mb={self.mb:g})", why="a chunk needs more than 0 MB", remedy="dear(mb=10)")

    def plan(self, profile: Profile, seconds: Seconds) -> Plan:
        return Fusion(self.mb).plan(profile, seconds)
