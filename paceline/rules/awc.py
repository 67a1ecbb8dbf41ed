"""Adapt while combining (decentralized gradient descent): average parameters while forward and backward run.

    x[i] <- sum_j W[i, j] * x[j]  -  lr * grad_i(x[i])

The gradient is taken at the parameters before averaging, so the exchange hides behind the whole step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.rules.averaging import Averaging, AveragingDuty
from paceline.rules.context import Context


@dataclass(frozen=True)
class Awc(Averaging):
    name: ClassVar[str] = "awc"
    leaves: ClassVar[str] = "begin"

    def bind(self, context: Context) -> AwcDuty:
        return AwcDuty(context, self)


class AwcDuty(AveragingDuty):
    """Parameters leave when a step begins and are back before its update."""

    def begin(self) -> None:
        self.send()

    def update(self) -> None:
        self.take()
        self.local_update()
        self.count()
