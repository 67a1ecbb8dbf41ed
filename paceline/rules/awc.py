"""Adapt while combining (decentralized gradient descent): average parameters while forward and backward run.

    x[i] <- sum_j W[i, j] * x[j]  -  lr * grad_i(x[i])

The gradient is taken at the parameters before averaging, so the exchange hides behind the whole step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.menu import Member
from paceline.rules.atc import PARAMETERS, AllLane
from paceline.rules.context import Context
from paceline.rules.local import LocalDuty, check_every
from paceline.types import Lane


@dataclass(frozen=True)
class Awc(Member):
    every: int = 1
    global_every: int = 0

    name: ClassVar[str] = "awc"
    lanes: ClassVar[tuple[Lane, ...]] = (PARAMETERS,)
    leaves: ClassVar[str] = "begin"
    due: ClassVar[str] = "update"
    same_result: ClassVar[bool] = False
    needs: ClassVar[str] = "doubly stochastic"

    def __post_init__(self) -> None:
        check_every(self, self.every)
        check_every(self, self.global_every, least=0)

    def bind(self, context: Context) -> AwcDuty:
        return AwcDuty(context, self.every, self.global_every)


class AwcDuty(LocalDuty):
    """Parameters leave when a step begins and are back before its update."""

    def __init__(self, context: Context, every: int, global_every: int) -> None:
        super().__init__(context)
        self._every, self._global_every, self._mixings = every, global_every, 0
        self._lane = self.carry(PARAMETERS)
        self._all = AllLane(context) if global_every else None

    def begin(self) -> None:
        if (self.steps + 1) % self._every == 0:
            self._lane.send(self._mixings, self.values())
            self._mixings += 1

    def wait(self) -> None:
        self._lane.wait()

    def update(self) -> None:
        if self._lane.sent:
            self.adopt(self._lane.take())
        self.local_update()
        self.steps += 1
        if self._all is not None and self.steps % self._global_every == 0:
            self.adopt(self._all.mean(self.steps, self.values()))
