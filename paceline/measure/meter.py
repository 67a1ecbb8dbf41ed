"""A stopwatch for the parts of a step.

|-- data --|-- forward --|-- backward --|-- exposed --|-- update --|  other = the rest of the step
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from paceline.types import Event, Noted

PARTS = ("data", "forward", "backward", "exposed", "update")


@dataclass
class Tally:
    """A context manager that counts the bytes and the CPU seconds of a section."""

    counters: Callable[[], Sequence[int]]
    clock: Callable[[], float]
    nbytes: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def __enter__(self) -> Tally:
        self._before, self._began = self.counters(), self.clock()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += self.clock() - self._began
        sums = self.nbytes or [0] * len(self._before)
        self.nbytes = [n + now - then for n, now, then in zip(sums, self.counters(), self._before, strict=True)]


@dataclass
class Meter:
    """The seconds of every step and of its parts. Ending a part reads the clock once."""

    clock: Callable[[], float] = perf_counter
    steps: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})

    def start(self) -> None:
        self._began = self._lapped = self.clock()
        self._sums = dict.fromkeys(PARTS, 0.0)

    def lap(self, part: str) -> None:
        now = self.clock()
        self._sums[part] += now - self._lapped
        self._lapped = now

    def add(self, part: str, seconds: float) -> None:
        """Add seconds to a part that was timed elsewhere, within the time since the last lap."""
        self._sums[part] += seconds

    def stop(self) -> None:
        self.steps.append(self.clock() - self._began)
        for part, seconds in self._sums.items():
            self.parts[part].append(seconds)


# The kind of event that begins when a part ends.
_NEXT = {"data": "forward", "forward": "backward", "backward": "computed"}


class Diary(Meter):
    """A meter that also writes when each part began to the log of the engine."""

    def __init__(self, log: list[Noted], step: Callable[[], int], clock: Callable[[], float] = perf_counter) -> None:
        super().__init__(clock)
        self._log, self._step = log, step

    def start(self) -> None:
        super().start()
        self._log.append(Event(self._began, "data", self._step()))

    def lap(self, part: str) -> None:
        super().lap(part)
        self._log.append(Event(self._lapped, _NEXT[part], self._step()))

    def stop(self) -> None:
        super().stop()
        self._log.append(Event(self._began + self.steps[-1], "end", self._step() - 1))
