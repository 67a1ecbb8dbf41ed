"""The ranks that started are the ranks that finish; a step commits if this rank wants it to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.menu import Member
from paceline.types import View


@dataclass(frozen=True)
class Fixed(Member):
    name: ClassVar[str] = "fixed"
    elastic: ClassVar[bool] = False

    def join(self, view: View) -> FixedPresence:
        return FixedPresence(view)


class FixedPresence:
    def __init__(self, view: View) -> None:
        self._view = view

    def begin(self) -> View:
        return self._view

    def commit(self, ok: bool) -> bool:
        return ok
