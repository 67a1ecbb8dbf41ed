"""Named points at which a test kills or stops this process.

PACELINE_FAULT="after the vote:3:9" sends signal 9 when the point "after the vote" is passed for the third time.
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
    """Count a passing of this point, and send this process the signal if PACELINE_FAULT asks for it now."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    name, passing, number = wanted.rsplit(":", 2)
    _passed[point] = _passed.get(point, 0) + 1
    if name == point and _passed[point] == int(passing):
        os.kill(os.getpid(), int(number))
