"""Push-sum: averaging on directed and irregular graphs, where rows and columns cannot both sum to one.

    x[i] <- sum_j A[i, j] (x[j] + update[j])        columns of A sum to one: mass is split, never made
    p[i] <- sum_j A[i, j] p[j]                      p starts at 1 and measures how much mass arrived
    parameters = x / p

M. Assran, N. Loizou, N. Ballas and M. Rabbat, "Stochastic Gradient Push for Distributed Deep Learning", 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.menu import Member
from paceline.rules.context import Context
from paceline.rules.local import LocalDuty
from paceline.types import Lane

MASS = Lane("parameters with mass", needs_consensus=False, lossy_ok=False, tail="mass", stale_ok=True)


@dataclass(frozen=True)
class PushSum(Member):
    name: ClassVar[str] = "push_sum"
    lanes: ClassVar[tuple[Lane, ...]] = (MASS,)
    leaves: ClassVar[str] = "update"
    due: ClassVar[str] = "update"
    same_result: ClassVar[bool] = False
    needs: ClassVar[str] = "neighbors"

    def bind(self, context: Context) -> PushSumDuty:
        return PushSumDuty(context)


class PushSumDuty(LocalDuty):
    """`x` is the mass of the parameters, `masses` that of one in each arena; the model holds x / mass.

    Arenas (one per dtype) travel by themselves; over windows they may do so at different speeds.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._lane = self.carry(MASS)
        self.x = [value.clone() for value in self.values()]
        self.masses = [1.0] * len(self._lane.engine.arenas)

    @property
    def p(self) -> float:
        return self.masses[0]

    def leave(self) -> None:
        before = [value.clone() for value in self.values()]
        self.local_update()
        for x, new, old in zip(self.x, self.values(), before, strict=True):
            x.add_(new - old)
        for arena, mass in zip(self._lane.engine.arenas, self.masses, strict=True):
            arena.tail.fill_(mass)
        self._lane.send(self.steps, self.x)

    def wait(self) -> None:
        self._lane.wait()

    def update(self) -> None:
        for x, mixed in zip(self.x, self._lane.take(), strict=True):
            x.copy_(mixed)
        arenas = self._lane.engine.arenas
        self.masses = [float(arena.result[-1]) for arena in arenas]
        by_dtype = {arena.dtype: mass for arena, mass in zip(arenas, self.masses, strict=True)}
        self.adopt([x / by_dtype[x.dtype] for x in self.x])
        self.steps += 1

    def state(self) -> Mapping[str, Any]:
        return {"steps": self.steps, "x": [x.clone() for x in self.x], "masses": list(self.masses)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.steps, self.x, self.masses = state["steps"], [x.clone() for x in state["x"]], list(state["masses"])
