"""Adapt, then combine: step locally, then average parameters with neighbors.

    x[i] <- sum_j W[i, j] * (x[j] - lr * grad_j(x[j]))

`every=k` steps k times before it averages: with exchange allreduce that is local SGD. `global_every=k` additionally
averages over all ranks every k steps. With full averaging and an equal start it equals rule grad for SGD with momentum,
Nesterov and weight decay: momentum is linear, so the result is as if momentum buffers were averaged, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.strategy.rules._averaging import Averaging, AveragingDuty
from paceline.strategy.rules._context import Context


@dataclass(frozen=True)
class Atc(Averaging):
    name: ClassVar[str] = "atc"
    leaves: ClassVar[str] = "update"

    def bind(self, context: Context) -> AtcDuty:
        return AtcDuty(context, self)


class AtcDuty(AveragingDuty):
    """A duty whose parameters leave after the local update."""

    def leave(self) -> None:
        self.local_update()
        self.send()

    def update(self) -> None:
        self.take()
        self.count()
