"""Adapt, then combine: step locally, then average parameters with neighbors.

    x[i] <- sum_j W[i, j] * (x[j] - lr * grad_j(x[j]))

`every=k` steps k times before it averages: with exchange allreduce that is local SGD. `global_every=k` averages
over all ranks every k steps on top. With full averaging and an equal start it equals rule grad for SGD with
momentum, Nesterov and weight decay: the momentum buffers are averaged too, in effect, because they are linear.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.menu import Member
from paceline.rules.context import Carrier, Context
from paceline.rules.local import LocalDuty, check_every
from paceline.types import Lane

PARAMETERS = Lane("parameters", needs_consensus=False, lossy_ok=False, stale_ok=True)
EVERYBODY = Lane("parameters of all", needs_consensus=False, lossy_ok=False)


@dataclass(frozen=True)
class Atc(Member):
    every: int = 1
    global_every: int = 0

    name: ClassVar[str] = "atc"
    lanes: ClassVar[tuple[Lane, ...]] = (PARAMETERS,)
    leaves: ClassVar[str] = "update"
    due: ClassVar[str] = "update"
    same_result: ClassVar[bool] = False
    needs: ClassVar[str] = "doubly stochastic"

    def __post_init__(self) -> None:
        check_every(self, self.every)
        check_every(self, self.global_every, least=0)

    def bind(self, context: Context) -> AtcDuty:
        return AtcDuty(context, self.every, self.global_every)


class AtcDuty(LocalDuty):
    """Local updates; every few of them parameters are averaged."""

    def __init__(self, context: Context, every: int, global_every: int) -> None:
        super().__init__(context)
        self._every, self._global_every, self._mixings = every, global_every, 0
        self._lane = self.carry(PARAMETERS)
        self._all = AllLane(context) if global_every else None

    def leave(self) -> None:
        self.local_update()
        if (self.steps + 1) % self._every == 0:
            self._lane.send(self._mixings, self.values())
            self._mixings += 1

    def wait(self) -> None:
        self._lane.wait()

    def update(self) -> None:
        if self._lane.sent:
            self.adopt(self._lane.take())
        self.steps += 1
        if self._all is not None and self.steps % self._global_every == 0:
            self.adopt(self._all.mean(self.steps, self.values()))


class AllLane:
    """A mean over all ranks on top of a neighbor exchange."""

    def __init__(self, context: Context) -> None:
        from paceline.exchanges.allreduce import AllReduce

        self._lane = Carrier(context, EVERYBODY, AllReduce())

    def mean(self, number: int, tensors):  # type: ignore[no-untyped-def]
        self._lane.send(number, tensors)
        self._lane.wait()
        return self._lane.take()
