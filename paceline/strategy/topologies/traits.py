"""The traits of a topology, with the value that most topologies have; a member overrides what differs."""

from __future__ import annotations

from typing import ClassVar

from paceline.menu.menu import Member
from paceline.strategy.topologies._size import check_size


class TopologyTraits(Member):
    """
    changes   rows differ from step to step
    """

    changes: ClassVar[bool] = False

    @property
    def directed(self) -> bool:
        """Return whether a rank may send to one that does not send back."""
        return True

    def period(self, size: int, nodes: int = 1) -> int:
        """Return the steps after which rows repeat."""
        return 1

    def symmetric(self, size: int, nodes: int = 1) -> bool:
        """Return whether W is symmetric."""
        return False

    def doubly_stochastic(self, size: int, nodes: int = 1) -> bool:
        """Return whether columns sum to one as rows do, so that the mean over all ranks is kept."""
        return True

    def check(self, size: int, nodes: int = 1) -> None:
        """Refuse a number of ranks and nodes that does not fit."""
        check_size(self, size, nodes)

    def note(self, size: int, nodes: int = 1) -> str | None:
        """Return a remark for the user about this topology with this many ranks, or None."""
        return None
