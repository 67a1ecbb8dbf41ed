"""The queue of operations of one rank, advanced by whoever calls.

Every rank counts what it posted and what it has done of its share; nobody writes a counter of another. An
operation goes through three points, and the whole queue moves in one order:

    post       my source is in place                       posted[me] += 1
    share      once all have posted: do my part            shared[me] += 1
    finish     once all have shared: take what I need      (sources may be written again)

There is no helper thread: `progress()` advances what can be advanced (the engine calls it from backward),
`wait_for()` sleeps on the counter of the first rank that is behind.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from paceline.errors import PeerLost

POSTED, SHARED = 0, 1
DEADLINE = 300.0  # seconds; a compile or a checkpoint on one rank must fit in


class Counters(Protocol):
    """Two counters per rank that all ranks can read, and a way to sleep until one moves."""

    size: int

    def value(self, kind: int, rank: int) -> int: ...

    def bump(self, kind: int) -> None: ...

    def sleep(self, kind: int, rank: int, seen: int, seconds: float) -> None: ...

    def excuse(self, rank: int) -> str | None:
        """Why a rank will not answer any more, if it will not."""

    def name(self, rank: int) -> str: ...

    def leave(self, why: str) -> None: ...


class Place(Protocol):
    """Memory that one operation at a time may use."""

    user: Any


class Op:
    """One operation in the queue."""

    def __init__(self, verb: str, key: object, share: Callable[[], None] | None = None) -> None:
        self.verb, self.key, self.number = verb, key, -1
        self.prepare: Callable[[], Any] | None = None
        self.share = share
        self.finish: Callable[[], Any] | None = None
        self.place: Place | None = None
        self.waits_for: tuple[int, ...] = ()  # who must have posted before my share
        self.readers: tuple[int, ...] = ()  # who must have shared before my source is free again
        self.early = False  # finished for this rank as soon as its own share is done
        self.finished = False

    def ranks(self, kind: int) -> tuple[int, ...]:
        return self.waits_for if kind == POSTED else self.readers

    def __str__(self) -> str:
        return f"{self.verb} of {self.key}" if str(self.key) else self.verb


class QueueWork:
    """A handle on the last operation of a call; operations finish in order."""

    def __init__(self, queue: Queue, last: Op | None) -> None:
        self._queue, self._last = queue, last

    def wait(self, deadline: float | None = None) -> None:
        if self._last is not None:
            self._queue.wait_for(self._last, deadline)

    def done(self) -> bool:
        if not self.landed():
            self._queue.progress()
        return self.landed()

    def landed(self) -> bool:
        """Whether it was through when the queue last moved; moves nothing."""
        return self._last is None or self._last.finished

    def then(self, after: Callable[[], Any]) -> QueueWork:
        """Run `after` when the last operation finishes."""
        op = self._last
        if op is None or op.finished:
            after()
            return self
        op.early = False  # whoever waits must find `after` done
        before = op.finish
        op.finish = after if before is None else lambda: (before(), after())
        return self


class Queue:
    """Operations in the order in which they were called, the same on all ranks."""

    def __init__(self, counters: Counters, deadline: float) -> None:
        self.deadline = deadline
        self._counters = counters
        self._unposted: deque[Op] = deque()
        self._posted: deque[Op] = deque()  # posted, not finished
        self._unshared: deque[Op] = deque()  # posted, my share not done
        self._posts = 0

    def submit(self, op: Op) -> QueueWork:
        self._unposted.append(op)
        self.progress()
        return QueueWork(self, op)

    def progress(self) -> None:
        """Post, share and finish whatever can be, without sleeping."""
        moving = bool(self._unposted or self._posted)
        while moving:
            moving = self._post_next()
            while self._unshared and self._past_all(POSTED, self._unshared[0]):
                self._share_next()
                moving = True
            while self._posted and self._past_all(SHARED, self._posted[0]):
                self._finish_next()
                moving = True

    def _post_next(self) -> bool:
        posted = False
        while self._unposted:
            op = self._unposted[0]
            if op.place is not None:
                if op.place.user is not None:
                    break
                op.place.user = op
            if op.prepare is not None:
                op.prepare()
            op.number = self._posts
            self._posts += 1
            self._posted.append(op)
            self._unshared.append(op)
            self._unposted.popleft()
            self._counters.bump(POSTED)
            posted = True
        return posted

    def _share_next(self) -> None:
        op = self._unshared.popleft()
        if op.share is not None:
            op.share()
        op.finished = op.early
        self._counters.bump(SHARED)

    def _finish_next(self) -> None:
        op = self._posted.popleft()
        if op.finish is not None:
            op.finish()
        if op.place is not None:
            op.place.user = None
        op.finished = True

    def _past_all(self, kind: int, op: Op) -> bool:
        value, number = self._counters.value, op.number
        return all(_past(value(kind, peer), number) for peer in op.ranks(kind))

    def wait_for(self, op: Op, deadline: float | None) -> None:
        """Advance the queue until `op` is finished; sleep on whoever is behind."""
        limit = self.deadline if deadline is None else deadline
        began = time.monotonic()
        while True:
            self.progress()
            if op.finished:
                return
            self._sleep(*self._behind(op), began, limit)

    def _behind(self, op: Op) -> tuple[int, Op]:
        """The counter and the operation that keep `op` from finishing: its own, or an earlier one in the queue."""
        target = op if op.number >= 0 else self._posted[0]
        if self._unshared and target.number >= self._unshared[0].number:
            return POSTED, self._unshared[0]
        return SHARED, self._posted[0]

    def _sleep(self, kind: int, op: Op, began: float, limit: float) -> None:
        for peer in op.ranks(kind):
            seen = self._counters.value(kind, peer)
            if _past(seen, op.number):
                continue
            waited = time.monotonic() - began
            excuse = self._counters.excuse(peer) if waited > 0.05 else None
            if excuse and not _past(self._counters.value(kind, peer), op.number):
                raise PeerLost(f"{self._counters.name(peer)} {excuse} during {op}", rank=peer)
            if waited >= limit:
                raise PeerLost(
                    f"{self._counters.name(peer)} stopped answering in {op} after {waited:.1f} s",
                    rank=peer,
                    remedy="look at that rank's output; a step that needs longer takes --deadline SECONDS",
                )
            self._counters.sleep(kind, peer, seen, min(0.25, limit - waited))
            return


def _past(value: int, number: int) -> bool:
    """Whether a counter of 32 bits, which may have wrapped, is above a number."""
    return (value - number - 1) & 0xFFFFFFFF < 0x80000000
