"""Named points at which a test kills or stops this process.

PACELINE_FAULT="after the vote:3:9" sends signal 9 when the point "after the vote" is passed for the third time.
Nothing happens without the variable.

    before send             this member has computed its shards, and has shown none of them
    after a chunk           a part of its sum is in the memory of the others (shm), or was sent (tcp)
    after the reduction     it has added its part of the result, and nobody knows
    after the result        it has the whole result, and has not voted
    after the vote          all votes are there, and it has not updated
    after the update        it has updated, and has not acknowledged
    while leaving           a peer is lost: it has raised the fence, and has not reported
    while entering          it has the next group, and has not met its members
    during the transfer     a newcomer waits for the state
    giving the state        rank 0 sends it
    within the entry        the coordinator writes a generation into its journal
    after the entry         it has written the generation, and nobody has heard of it
"""

from __future__ import annotations

import os

VARIABLE = "PACELINE_FAULT"
STEP_POINTS = (
    "before send",
    "after a chunk",
    "after the reduction",
    "after the result",
    "after the vote",
    "after the update",
)
ENTRY_POINTS = ("within the entry", "after the entry")
POINTS = (*STEP_POINTS, "while leaving", "while entering", "during the transfer", "giving the state", *ENTRY_POINTS)

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
