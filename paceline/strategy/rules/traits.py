"""The traits of a rule, with the value that most rules have; a member overrides what differs."""

from __future__ import annotations

import math
from typing import ClassVar

from paceline.menu.menu import Member
from paceline.types import Lane


class RuleTraits(Member):
    """
    lanes                the vectors that it sends through the exchange
    leaves               when they leave: in "backward", when a step begins ("begin"), or after the local "update"
    needs                of the exchange: "consensus", "doubly stochastic", "symmetric", "neighbors" or "servers"
    averages_gradients   every rank applies the mean gradient, which is laid out and planned as it becomes ready
    """

    lanes: ClassVar[tuple[Lane, ...]]
    leaves: ClassVar[str]
    needs: ClassVar[str] = "consensus"
    averages_gradients: ClassVar[bool] = False

    @property
    def same_result(self) -> bool:
        """Whether training ends where one process on all batches ends."""
        return False

    @property
    def bound(self) -> int | None:
        """Steps that a rank may be ahead of the slowest; None is no bound."""
        return 0

    @property
    def streams(self) -> bool:
        """Whether it sends the model in parts, or takes a result some steps after it was sent."""
        return False

    @property
    def own_optimizer(self) -> str:
        """An optimizer that the rule runs besides the user's, as it is written; most rules have none."""
        return ""

    @property
    def intervals(self) -> tuple[int, ...]:
        """Steps between two exchanges, one number for each kind of exchange."""
        return (1,)

    @property
    def period(self) -> int:
        """Steps after which the rule repeats itself."""
        return math.lcm(*self.intervals)
