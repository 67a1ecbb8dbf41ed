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
        """Whether a rank may send to one that does not send back."""
        return True

    def period(self, size: int, nodes: int = 1) -> int:
        """Steps after which rows repeat themselves."""
        return 1

    def symmetric(self, size: int, nodes: int = 1) -> bool:
        """Whether two ranks weigh each other alike."""
        return False

    def doubly_stochastic(self, size: int, nodes: int = 1) -> bool:
        """Whether columns sum to one as rows do, so that the mean of all ranks is kept."""
        return True

    def check(self, size: int, nodes: int = 1) -> None:
        """Refuse a number of ranks and nodes that it cannot have."""
        check_size(self, size, nodes)

    def note(self, size: int, nodes: int = 1) -> str | None:
        """A remark for the user about this topology on so many ranks."""
        return None
