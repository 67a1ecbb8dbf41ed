"""Batches of another source. Each worker has producer processes, which prepare batches and pass them in shared memory.

queue(tfrecord(DIR), producers=2)      decoding runs beside training; the training process copies nothing
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.errors import BadMember
from paceline.menu.menu import Member, nested
from paceline.types import View
from paceline.workload.sources._source import Distant, Samples, Source
from paceline.workload.stream.ring import Ring

MOST = 64  # most producers, and most slots of each


@dataclass(frozen=True)
class Queue(Member):
    name: ClassVar[str] = "queue"
    kind: ClassVar[str] = "stream"

    source: Any = nested("paceline.workload.sources:MENU")
    producers: int = 1
    slots: int = 4
    timeout: float = 120.0

    def __post_init__(self) -> None:
        if self.source.kind == "stream":
            raise BadMember(f"{self}", why="its batches are a stream already", remedy=f"--source {self.source}")
        if not (1 <= self.producers <= MOST and 2 <= self.slots <= MOST and self.timeout > 0):
            raise BadMember(f"{self}", why=f"producers are 1 to {MOST}, slots 2 to {MOST}, and timeout is above 0")

    @property
    def constant(self) -> bool:
        return False

    @property
    def inner(self) -> Source:
        return self.source

    def fit(self) -> Mapping[str, int]:
        return self.inner.fit()

    def declared(self) -> Mapping[str, int] | None:
        return self.inner.declared() if isinstance(self.inner, Distant) else None

    def tests(self) -> Samples | None:
        return self.inner.tests()

    def open(self, view: View, settings: Mapping[str, Any]) -> Rings:
        """Start the producers of this rank. Taken in turn, the batches of all ranks' producers are those of one."""
        rings: list[Ring] = []
        for number in range(self.producers):
            part = {"part": view.rank * self.producers + number, "parts": view.size * self.producers}
            spec = {**settings, **part, "source": str(self.source), "slots": self.slots, "what": str(self)}
            rings.append(Ring(f"source {self}", spec, self.timeout))
        return Rings(rings)


class Rings:
    """The batches of several producers, in turn."""

    def __init__(self, rings: list[Ring]) -> None:
        self._rings, self._taken = rings, 0

    def take(self) -> Any:
        ring = self._rings[self._taken % len(self._rings)]
        self._taken += 1
        return ring.take()

    def close(self) -> None:
        for ring in self._rings:
            ring.close()
