"""The queue of collective operations of one rank. Calls of this rank advance it; there is no background thread.

Every rank counts the operations that it has posted and shared. No rank writes the counters of another. An operation
goes through three points, in the same order on all ranks:

    post       this rank's source is in place                       posted[me] += 1
    share      once all have posted: do this rank's part            shared[me] += 1
    finish     once all have shared: copy the result out            (sources may be written again)

With each post a rank writes a note that describes its call. Ranks compare notes before the share. If they made
different calls, they get an error and never a result.

A share may still be under way when its function returns, for example if it crosses hosts. Then the function returns a
Work, and SHARED is counted when that work is done, in the order of the operations.

`progress()` advances operations without waiting; the engine calls it from backward. `wait_for()` sleeps until a rank
that is behind makes progress.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.comm.notes import CLOSED, NOTES, call_text, is_closed, mismatch
from paceline.comm.transport import Work
from paceline.errors import CallMismatch, PeerLost

POSTED, SHARED = 0, 1
LEFT = "left the group"  # the reason in why_lost for a rank that closed its comm without a failure
DEADLINE = 300.0  # seconds; long enough for a compile or a checkpoint on one rank
SLICE = 0.05  # seconds between two checks whether an awaited rank still runs
WATCHED = 0.01  # the same for a rank that must notice the end of a peer at once, because the others go on
POLL = 0.0003  # seconds between two looks at a share that is under way
PARTING = 0.5  # seconds in which a rank that gives up an operation says so
ENDING = 10.0  # seconds that a rank which makes no more calls waits for the others

Word = tuple[int, int, int]  # kind and rank of a counter, and the value that was seen there


class Counters(Protocol):
    """Two counters per rank that all ranks can read, and a way to sleep until a counter changes."""

    rank: int
    size: int

    def check_process(self) -> None:
        """Raise WrongCommand in a forked child of the process that joined."""

    def value(self, kind: int, rank: int) -> int: ...

    def bump(self, kind: int) -> None: ...

    def sleep(self, words: Sequence[Word], seconds: float) -> None:
        """Sleep until one of the counters changes, at most `seconds`."""

    def note(self, number: int, text: bytes) -> None:
        """Write a note of this rank's operation `number`; other ranks read it after the next post."""

    def noted(self, rank: int, number: int) -> bytes: ...

    def why_lost(self, rank: int) -> str | None:
        """Return why a rank will not answer any more, or None."""

    def name(self, rank: int) -> str: ...

    def leave(self, why: str) -> None: ...


class StagingPlace(Protocol):
    """Staging memory. One operation at a time may use it; `user` is that operation or None."""

    user: Any


class Op:
    """One operation in the queue."""

    def __init__(
        self,
        verb: str,
        key: object,
        share: Callable[[], Work | None] | None = None,
        length: str = "",
        note: object = None,
    ) -> None:
        self.verb, self.key, self.number = verb, key, -1
        self._length, self._note, self.noted = length, key if note is None else note, b""
        self.prepare: Callable[[], Any] | None = None
        self.share = share
        self.finish: Callable[[], Any] | None = None
        self.place: StagingPlace | None = None
        self.waits_for: tuple[int, ...] = ()  # ranks that must have posted before this rank's share
        self.readers: tuple[int, ...] = ()  # ranks that must have shared before this rank's source may be written again
        self.early = False  # finished on this rank as soon as its own share is done
        self.finished = False

    def text(self) -> bytes:
        """Return the note of this operation. It must be the same on all ranks."""
        return call_text(self.verb, self._length, self._note)

    def ranks(self, kind: int) -> tuple[int, ...]:
        return self.waits_for if kind == POSTED else self.readers

    def __str__(self) -> str:
        return f"{self.verb} of {self.key}" if str(self.key) else self.verb


class QueueWork(Work):
    """A handle on the last operation of a call. Operations finish in order, so the call is done when this one is."""

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
        """Return whether the operation is finished, without advancing the queue."""
        return self._last is None or self._last.finished

    def then(self, after: Callable[[], Any]) -> QueueWork:
        """Run `after` when the last operation finishes."""
        op = self._last
        if op is None or op.finished:
            after()
            return self
        op.early = False  # wait() must not return before `after` has run
        before = op.finish
        op.finish = after if before is None else lambda: (before(), after())
        return self


class Queue:
    """The operations of a rank in the order of its calls. The order must be the same on all ranks."""

    def __init__(self, counters: Counters, deadline: float) -> None:
        self.deadline = deadline
        self._counters, self._rank = counters, counters.rank
        self._unposted: deque[Op] = deque()
        self._posted: deque[Op] = deque()  # posted, not finished
        self._unshared: deque[Op] = deque()  # posted, this rank's share not begun
        self._sharing: deque[tuple[Op, Work | None]] = deque()  # this rank's share is under way, or waits behind one
        self._posts = 0
        self.watch: Callable[[Sequence[int]], None] | None = None  # raises PeerLost to end a wait for these ranks
        self.siblings: list[weakref.ref[Queue]] = []  # queues of the same processes, which go on while this one waits

    def submit(self, op: Op) -> QueueWork:
        self._counters.check_process()
        self._unposted.append(op)
        self.progress()
        return QueueWork(self, op)

    def progress(self) -> None:
        """Post, share and finish operations as far as possible without sleeping."""
        moving = bool(self._unposted or self._posted)
        while moving:
            moving = self._post_next()
            while self._unshared and self._past_all(POSTED, self._unshared[0]):
                self._share_next()
                moving = True
            while self._sharing and _is_done(self._sharing[0][1]):
                self._shared(self._sharing.popleft()[0])
                moving = True
            while self._posted and self._past_all(SHARED, self._posted[0]):
                self._finish_next()
                moving = True

    def _post_next(self) -> bool:
        posted = False
        while self._unposted:
            op = self._unposted[0]
            if self._posted and self._posts - self._posted[0].number >= NOTES:
                break  # its note would overwrite one that others have not compared yet
            if op.place is not None:
                if op.place.user is not None:
                    break
                op.place.user = op
            if op.prepare is not None:
                op.prepare()
            op.number = self._posts
            op.noted = op.text()
            self._counters.note(op.number, op.noted)
            self._posts += 1
            self._posted.append(op)
            self._unshared.append(op)
            self._unposted.popleft()
            self._counters.bump(POSTED)
            posted = True
        return posted

    def _share_next(self) -> None:
        self._compare(self._unshared[0], self._unshared[0].waits_for)
        op = self._unshared.popleft()
        under_way = None if op.share is None else op.share()
        if under_way is None and not self._sharing:
            self._shared(op)
        else:
            self._sharing.append((op, under_way))

    def _shared(self, op: Op) -> None:
        op.finished = op.early
        self._counters.bump(SHARED)

    def _compare(self, op: Op, peers: Sequence[int]) -> None:
        """Raise CallMismatch if the call of one of `peers` differs at the number of this operation."""
        counters, number, mine = self._counters, op.number, op.noted
        for peer in peers:
            if peer == self._rank or (text := counters.noted(peer, number)) == mine:
                continue
            # A rank that only reads from this one may be so far ahead that it has overwritten its note.
            if not _past(counters.value(POSTED, peer), number + NOTES - 1):
                if is_closed(text):
                    time.sleep(PARTING)  # Ctrl-C that ended the other rank may be about to arrive here
                raise mismatch(number, (counters.name(counters.rank), mine), (counters.name(peer), text), peer)

    def _finish_next(self) -> None:
        if self._posted[0].readers is not self._posted[0].waits_for:
            self._compare(self._posted[0], self._posted[0].readers)
        op = self._posted.popleft()
        if op.finish is not None:
            op.finish()
        if op.place is not None:
            op.place.user = None
        op.finished = True

    def _past_all(self, kind: int, op: Op) -> bool:
        value, number = self._counters.value, op.number
        for peer in op.ranks(kind):  # noqa: SIM110 - called for every gradient, and a generator takes twice as long
            if not _past(value(kind, peer), number):
                return False
        return True

    def wait_for(self, op: Op, deadline: float | None) -> None:
        """Advance the queue until `op` is finished. Sleep meanwhile on the counter of a rank that is behind."""
        limit = self.deadline if deadline is None else deadline
        began = time.monotonic()
        while True:
            self.progress()
            if op.finished:
                return
            if len(self.siblings) > 1:
                self._serve_siblings()
            if self._sharing and self._waits_for_own_share(op):
                self._poll(self._sharing[0][0], began, limit)
            else:
                self._sleep(*self._behind(op), began, limit)

    def _serve_siblings(self) -> None:
        for reference in self.siblings:
            queue = reference()
            if queue is not None and queue is not self:
                queue.progress()

    def _waits_for_own_share(self, op: Op) -> bool:
        return op.number < 0 or op.number >= self._sharing[0][0].number

    def _poll(self, op: Op, began: float, limit: float) -> None:
        """Sleep for a moment while this rank's own share is under way. No counter of this host shows its end."""
        waited = time.monotonic() - began
        if waited >= limit:
            raise PeerLost(
                f"a rank of another host stopped answering in {op} after {waited:.1f} s",
                remedy="look at the output of the other hosts; if a step takes longer, set --deadline SECONDS",
            )
        time.sleep(POLL)

    def _behind(self, op: Op) -> tuple[int, Op]:
        """Return what `op` waits for: a kind of counter, and an operation (itself or an earlier one)."""
        target = op if op.number >= 0 else self._posted[0]
        if self._unshared and target.number >= self._unshared[0].number:
            return POSTED, self._unshared[0]
        return SHARED, self._posted[0]

    def _sleep(self, kind: int, op: Op, began: float, limit: float) -> None:
        words = self._words(kind, op)
        if not words:
            return
        if self.watch is not None:
            self.watch(self._late(kind, op))
        waited, moment = time.monotonic() - began, SLICE if self.watch is None else WATCHED
        if waited > moment:
            self._check_alive(kind, op)
        if waited >= limit:
            raise PeerLost(
                f"{self._counters.name(words[0][1])} stopped answering in {op} after {waited:.1f} s",
                rank=words[0][1],
                remedy="look at that rank's output; if a step takes longer, set --deadline SECONDS",
            )
        self._counters.sleep(words, min(moment, limit - waited))

    def _check_alive(self, kind: int, op: Op) -> None:
        for peer in self._late(kind, op):
            why_lost = self._counters.why_lost(peer)
            if why_lost and not _past(self._counters.value(kind, peer), op.number):
                raise self._lost(peer, why_lost, op)

    def _words(self, kind: int, op: Op) -> list[Word]:
        """Return the counter that `op` waits for, and perhaps a second one whose change also lets this rank advance."""
        word = self._first_behind(kind, op)
        if word is None:
            return []
        if self._unshared and self._unshared[0] is not self._posted[0] and self._second_matters(kind):
            kind, op = (SHARED, self._posted[0]) if kind == POSTED else (POSTED, self._unshared[0])
            if (second := self._first_behind(kind, op)) is not None:
                return [word, second]
        return [word]

    def _second_matters(self, kind: int) -> bool:
        """Return whether this rank could do something for others when the second counter changes.

        A rank that waits for posts could finish older operations. If these copy nothing out and no post waits for their
        memory, that may as well happen later: sleeping on one counter is cheaper than on two.
        """
        return kind == SHARED or bool(self._unposted) or any(op.finish is not None for op in self._posted)

    def _first_behind(self, kind: int, op: Op) -> Word | None:
        for peer in op.ranks(kind):
            seen = self._counters.value(kind, peer)
            if not _past(seen, op.number):
                return kind, peer, seen
        return None

    def _late(self, kind: int, op: Op) -> list[int]:
        return [peer for peer in op.ranks(kind) if not _past(self._counters.value(kind, peer), op.number)]

    def _lost(self, peer: int, why_lost: str, op: Op) -> PeerLost:
        name, made = self._counters.name, self._counters.value(POSTED, peer)
        counts = f"it made {made} calls, {name(self._counters.rank)} {self._posts}" if LEFT in why_lost else ""
        return PeerLost(f"{name(peer)} {why_lost} during {op}", rank=peer, why=counts)

    def end(self, members: tuple[int, ...]) -> None:
        """Announce that this rank makes no more calls, and check for some seconds that the others make none either.

        If operations are unfinished, this rank has given up waiting for them, and nothing is compared.
        """
        try:
            self.progress()
        except CallMismatch:
            return
        if self._unposted or not all(op.finished for op in self._posted):
            return
        op = Op(CLOSED, "")
        op.early, op.waits_for, op.readers = True, members, members
        try:
            self._wait_to_end(op)
        except CallMismatch as problem:
            if not self._gone_soon(problem.rank):
                raise

    def _wait_to_end(self, op: Op) -> None:
        work, limit = self.submit(op), time.monotonic() + ENDING
        while not work.done() and time.monotonic() < limit:
            if any(self._counters.why_lost(peer) for peer in self._late(POSTED, op)):
                return
            if words := self._words(POSTED, op):
                self._counters.sleep(words, SLICE)

    def _gone_soon(self, peer: int) -> bool:
        """Return whether a rank that made one more call leaves soon. Ctrl-C ends ranks at different calls."""
        limit = time.monotonic() + PARTING
        while not self._counters.why_lost(peer) and time.monotonic() < limit:
            time.sleep(0.01)
        return self._counters.why_lost(peer) == LEFT


def _is_done(work: Work | None) -> bool:
    return work is None or work.done()


def _past(value: int, number: int) -> bool:
    """Return whether a 32-bit counter, which may have wrapped around, is greater than a number."""
    return (value - number - 1) & 0xFFFFFFFF < 0x80000000
