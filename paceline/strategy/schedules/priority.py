"""Pieces leave in the order in which the next forward needs them. The step does not wait for them.

    backward   g4   g3   g2   g1  |  forward  x1   x2   x3   x4
    link       [4]  [3.][2]  [1]  .. [1.] [2] [.3] ...              the ready piece that is needed first leaves first

Tensors are cut into pieces of at most `partition` MB (1,048,576 bytes), and small neighbors travel together. At most
`credit` MB are under way, so that an urgent piece that becomes ready late does not wait for many others. Each layer's
forward waits for its own parameters and updates them. Rank 0 decides the order, the others follow.

Y. Peng et al., "A Generic Communication Scheduler for Distributed DNN Training Acceleration" (ByteScheduler), SOSP
2019; A. Jayarajan et al., "Priority-based Parameter Propagation for Distributed DNN Training" (P3), MLSys 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import BadMember
from paceline.strategy.schedules.traits import ScheduleTraits
from paceline.types import Layout, Plan, Profile, Seconds

MB = 1 << 20


@dataclass(frozen=True)
class Priority(ScheduleTraits):
    partition: float = 4.0
    credit: float = 16.0

    name: ClassVar[str] = "priority"
    crosses_step: ClassVar[bool] = True
    measures: ClassVar[bool] = True
    cuts_tensors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.partition * MB >= 1:
            raise BadMember(
                f"priority(partition={self.partition:g})",
                why="a piece needs more than 0 bytes",
                remedy="priority(partition=4), in MB",
            )
        if not self.credit >= self.partition:
            raise BadMember(
                f"priority(partition={self.partition:g}, credit={self.credit:g})",
                why="no piece could leave with a credit below the partition",
                remedy=f"credit={4 * self.partition:g}",
            )

    @property
    def credit_bytes(self) -> int:
        return int(self.credit * MB)

    def plan(self, profile: Profile, seconds: Seconds) -> Plan:
        """Return a plan in which flags travel alone: all layers need them, and they are known only after backward."""
        layout = profile.layout
        return Plan(tuple(sorted({0, *pieces(layout, int(self.partition * MB)), layout.offsets[-1], layout.numel})))


def pieces(layout: Layout, most: int) -> list[int]:
    """Return the cut points: neighbors stay together up to `most` bytes, larger tensors are cut into even parts."""
    cap = max(1, most // layout.itemsize)
    cuts, start = [], 0
    for begin, end in zip(layout.offsets, layout.offsets[1:], strict=False):
        if end - start <= cap:
            continue
        cuts.append(begin)
        parts = -(-(end - begin) // cap)
        cuts += [begin + (end - begin) * k // parts for k in range(1, parts)]
        start = begin if parts == 1 else end
        cuts += [end] if parts > 1 else []
    return cuts
