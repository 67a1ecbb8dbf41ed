"""Named points at which a test kills or stops this process: PACELINE_FAULT="after the vote:3:9" at its third passing.

Nothing happens without the variable.
"""

from __future__ import annotations

import os

VARIABLE = "PACELINE_FAULT"
POINTS = (
    "before send",
    "after the result",
    "after the vote",
    "after the update",
    "during the transfer",
    "giving the state",
)

_passed: dict[str, int] = {}


def fault(point: str) -> None:
    """Send this process the signal that the environment asks for, at the passing that it asks for."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    name, passing, number = wanted.rsplit(":", 2)
    _passed[point] = _passed.get(point, 0) + 1
    if name == point and _passed[point] == int(passing):
        os.kill(os.getpid(), int(number))
