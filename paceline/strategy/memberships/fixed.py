"""The ranks that started are the ranks that finish; a step commits if this rank wants it to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.strategy.memberships.traits import MembershipTraits
from paceline.types import View


@dataclass(frozen=True)
class Fixed(MembershipTraits):
    name: ClassVar[str] = "fixed"

    def join(self, view: View) -> FixedPresence:
        return FixedPresence(view)


class FixedPresence:
    def __init__(self, view: View) -> None:
        self._view = view

    def begin(self) -> View:
        return self._view

    def commit(self, ok: bool) -> bool:
        return ok
