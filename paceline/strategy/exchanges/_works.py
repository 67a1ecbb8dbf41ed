"""Works made of several rounds: the next round starts when the one before is waited for.

All ranks wait in the order of the plan, so the rounds of all chunks are called in one order everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from paceline.comm.transport import Work
from paceline.protocols import Payload, Rounds


class Chain(Work):
    """A generator of works; each is started when the one before is done, the first at once."""

    def __init__(self, works: Iterator[Work]) -> None:
        self._works = works
        self._work: Work | None = next(works, None)

    def wait(self, deadline: float | None = None) -> None:
        while self._work is not None:
            self._work.wait(deadline)
            self._work = next(self._works, None)

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
