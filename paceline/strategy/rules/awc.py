"""Adapt while combining (decentralized gradient descent): average parameters while forward and backward run.

    x[i] <- sum_j W[i, j] * x[j]  -  lr * grad_i(x[i])

The gradient is taken at the parameters before averaging, so the exchange hides behind the whole step. If other code
changes parameters meanwhile (a clamp, a checkpoint), the change is added to the average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.strategy.rules._averaging import Averaging, AveragingDuty
from paceline.strategy.rules._context import Context

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Awc(Averaging):
    name: ClassVar[str] = "awc"
    leaves: ClassVar[str] = "begin"

    def bind(self, context: Context) -> AwcDuty:
        return AwcDuty(context, self)


class AwcDuty(AveragingDuty):
    """A duty whose parameters leave when a step begins, and are back before its update."""

    def __init__(self, context: Context, rule: Awc) -> None:
        super().__init__(context, rule)
        context.on_forward(self.advance)

    def begin(self) -> None:
        self.send()

    def update(self) -> None:
        changes = self._changes() if self._lane.sent else {}
        self.take()
        with self._torch.no_grad():
            for position, change in changes.items():
                self.parameters[position].add_(change)
        self.local_update()
        self.count()

    def _changes(self) -> dict[int, Tensor]:
        """Return by how much parameters differ from the values that left, which the lane still holds."""
        engine, changes = self._lane.engine, {}
        # The exchange is a sum, so each rank sends its share.
        ranks = self.context.comm.size if self.context.exchange.consensus else 1
        for slot, position in enumerate(engine.order):
            sent = engine.source(slot)
            value = self.parameters[position].detach().to(sent.dtype)
            if not self._torch.equal(sent, value if ranks == 1 else value * (1.0 / ranks)):
                changes[position] = value - sent * ranks
        return changes
