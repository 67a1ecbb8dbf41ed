"""Where the time of an elastic step goes: seconds by parts of the step."""

from __future__ import annotations

from collections.abc import Callable


class Laps:
    """Seconds by parts of a step. Every moment since the last `take` is in exactly one part."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._last = clock, clock()
        self._parts: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """Add the time since the last lap to a part."""
        now = self._clock()
        self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        """Return the parts so far, and begin anew."""
        parts, self._parts = self._parts, {}
        return parts
