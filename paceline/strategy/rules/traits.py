"""The traits of a rule, with the value that most rules have; a member overrides what differs."""

from __future__ import annotations

import math
from typing import ClassVar

from paceline.menu.menu import Member
from paceline.types import Lane


class RuleTraits(Member):
    """
    lanes                the vectors that the rule sends through the exchange
    leaves               when they leave: in "backward", when a step begins ("begin"), or after the local "update"
    needs                what the exchange must offer: "consensus", "doubly stochastic", "symmetric", "neighbors",
    "servers" averages_gradients   every rank applies the mean gradient, and its parts travel in the order of backward
    """

    lanes: ClassVar[tuple[Lane, ...]]
    leaves: ClassVar[str]
    needs: ClassVar[str] = "consensus"
    averages_gradients: ClassVar[bool] = False

    @property
    def same_result(self) -> bool:
        """Return whether training gives the same parameters as one process that trains on all batches."""
        return False

    @property
    def bound(self) -> int | None:
        """The steps that a rank may be ahead of the slowest; None means no bound."""
        return 0

    @property
    def streams(self) -> bool:
        """Return whether it sends the model in parts, or applies a result some steps after it was sent."""
        return False

    @property
    def own_optimizer(self) -> str:
        """The text of an optimizer that the rule runs besides the user's; empty for most rules."""
        return ""

    @property
    def intervals(self) -> tuple[int, ...]:
        """The steps between exchanges; a second number if the rule also averages over all ranks now and then."""
        return (1,)

    @property
    def period(self) -> int:
        """The steps after which the rule repeats itself."""
        return math.lcm(*self.intervals)
