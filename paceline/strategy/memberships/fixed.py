"""Fixed membership: the ranks that start are the ranks that finish.

A step is committed by the decision of this rank alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.comm.transport import Comm
from paceline.strategy.memberships.traits import MembershipTraits
from paceline.types import View


@dataclass(frozen=True)
class Fixed(MembershipTraits):
    name: ClassVar[str] = "fixed"

    def join(self, comm: Comm) -> FixedPresence:
        return FixedPresence(comm)


class FixedPresence:
    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self._view = View(comm.rank, comm.size, comm.placement)

    def begin(self) -> View:
        return self._view

    def commit(self, ok: bool) -> bool:
        return ok
