"""Works made of several rounds: a round starts when the one before it is done.

Where every round has a comm of its own (`apart`), rounds go on by themselves: the engine advances what is under way in
the order of the plan, and a chunk never overtakes the one before it. So calls on each comm have one order on all ranks.
Otherwise later rounds start when they are waited for, again in the order of the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from paceline.comm.transport import Work
from paceline.protocols import Payload, Rounds


class Chain(Work):
    """A generator of works; each is started when the one before is done, the first at once."""

    def __init__(self, works: Iterator[Work], *, apart: bool = False) -> None:
        self._works, self._apart = works, apart
        self._started = 1
        self._work: Work | None = next(works, None)

    def wait(self, deadline: float | None = None) -> None:
        while self._work is not None:
            self._work.wait(deadline)
            self._next()

    def advance(self, limit: float = math.inf) -> float:
        """Start rounds while the one before is done and no more than `limit` were started; return how many were."""
        if self._apart:
            while self._work is not None and self._started < limit and self._work.done():
                self._next()
        return math.inf if self._work is None else self._started

    def _next(self) -> None:
        self._work = next(self._works, None)
        self._started += 1

    def round_done(self) -> bool:
        """Whether the round that is under way is through; there may be more."""
        return self._work is None or self._work.done()

    def done(self) -> bool:
        """Only a look: going on here would let ranks call in different orders."""
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
    """Drives a codec: each payload is combined, then the codec goes on, until it has written its result."""
    return Chain(combine(payload) for payload in rounds)
