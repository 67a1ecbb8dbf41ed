"""The committed steps over time, and the time of each part of a step, as members report them to the coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from paceline.elastic.journal import Journal, Row

EVERY = 0.25  # seconds between two rows of the journal
ROWS = 4000  # most rows; in a long job they are farther apart
PARTS = ("data", "compute", "pack", "wire", "vote", "update", "recover")


class Progress:
    """Writes a row into the journal now and then. Parts are sums over the steps of all members."""

    def __init__(self, journal: Journal, clock: Callable[[], float] = time.time) -> None:
        self._journal, self._clock = journal, clock
        rows = journal.history()
        self._began = rows[0].at if rows else clock()
        self._last = rows[-1].at if rows else 0.0
        self._parts = dict(rows[-1].parts) if rows else {}
        self._steps = -1

    def tell(self, generation: int, steps: int, members: int, parts: Mapping[str, object]) -> None:
        """Register that a member has committed `steps` steps, and the seconds of each part of the last one."""
        for name in PARTS:
            value = parts.get(name, 0.0)
            if isinstance(value, (int, float)) and 0 <= value < 1e6:
                self._parts[name] = self._parts.get(name, 0.0) + value
        self._parts["steps"] = self._parts.get("steps", 0.0) + 1
        now = self._clock()
        if steps != self._steps and now - self._last >= max(EVERY, (now - self._began) / ROWS):
            self._steps, self._last = steps, now
            self._journal.progress(Row(now, generation, steps, members, dict(self._parts)))


def rates(rows: Sequence[Row], window: float = 1.0) -> list[tuple[float, float, int]]:
    """Return (time, committed steps per second, members) about once per `window` seconds; a rollback counts as 0."""
    if not rows:
        return []
    points, last = [], rows[0]
    for row in rows[1:]:
        if row.at - last.at >= window:
            points.append((row.at, max(0, row.steps - last.steps) / (row.at - last.at), row.members))
            last = row
    return points


def step_seconds(rows: Sequence[Row]) -> list[float]:
    """Return the mean seconds per step between consecutive rows, without pairs between which no step was committed."""
    return [(b.at - a.at) / (b.steps - a.steps) for a, b in pairwise(rows) if b.steps > a.steps]
