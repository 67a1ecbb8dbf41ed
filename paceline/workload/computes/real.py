"""Real compute: forward and backward run the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import WrongCommand
from paceline.menu.menu import Member
from paceline.types import Workload


@dataclass(frozen=True)
class Real(Member):
    name: ClassVar[str] = "real"
    kind: ClassVar[str] = "measured"

    def workload(self, rank: int) -> Workload | None:
        """Return None, because the model of the run itself is trained."""
        return None

    def problems(self, *, model: str, batch_size: int, plain: bool) -> Iterator[WrongCommand]:
        """Yield no problems: every model can be computed."""
        yield from ()
