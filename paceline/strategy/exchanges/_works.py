"""Works made of several rounds: a round starts when the one before it is done.

If every round has its own comm (`apart`), rounds advance by themselves: the engine advances works in the order of the
plan, and a chunk never overtakes the one before it. So calls on each comm have the same order on all ranks. Otherwise a
later round starts when the engine waits for the work, again in the order of the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from paceline.comm.transport import Work
from paceline.protocols import Payload, Rounds


class Chain(Work):
    """A generator of works; each starts when the one before is done, the first one at once."""

    def __init__(self, works: Iterator[Work], *, apart: bool = False) -> None:
        self._works, self._apart = works, apart
        self._started = 1
        self._work: Work | None = next(works, None)

    def wait(self, deadline: float | None = None) -> None:
        while self._work is not None:
            self._work.wait(deadline)
            self._next()

    def advance(self, limit: float = math.inf) -> float:
        """Start rounds whose previous round is done, up to `limit` in all.

        Return the number so far, or infinity at the end.
        """
        if self._apart:
            while self._work is not None and self._started < limit and self._work.done():
                self._next()
        return math.inf if self._work is None else self._started

    def _next(self) -> None:
        self._work = next(self._works, None)
        self._started += 1

    def round_done(self) -> bool:
        """Return whether the present round is done; more rounds may follow."""
        return self._work is None or self._work.done()

    def done(self) -> bool:
        """Return whether all rounds are done.

        It starts no round, because ranks would start rounds in different orders.
        """
        return self._work is None


class Together(Work):
    """Several works as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works

    def wait(self, deadline: float | None = None) -> None:
        for work in self._works:
            work.wait(deadline)

    def done(self) -> bool:
        return all(work.done() for work in self._works)


def coded(rounds: Rounds, combine: Callable[[Payload], Work]) -> Chain:
    """Drive a codec: combine each payload, then resume the codec, until it has written its result."""
    return Chain(combine(payload) for payload in rounds)
