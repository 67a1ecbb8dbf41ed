"""Collectives among ranks that can read each other's memory, advanced by whoever calls.

Every rank counts what it posted and what it has done of its share; nobody writes a counter or a source of
another. An operation goes through three points, and the whole queue moves in one order:

    post       my source is in place                       posted[me] += 1
    share      once all have posted: do my part            shared[me] += 1
    finish     once all have shared: take what I need      (sources may be written again)

There is no helper thread: `progress()` advances what can be advanced (the engine calls it from backward),
`wait()` sleeps on the counter of the first rank that is behind. How counters are kept and slept on, and how
one rank sees the memory of another, is left to the comm (`shm`: futexes and memfd; `thread`: a condition).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.comm.sums import sum_into
from paceline.errors import PeerLost
from paceline.types import spread

POSTED, SHARED = 0, 1
DEADLINE = 300.0  # seconds; a compile or a checkpoint on one rank must fit in
STAGING = 1 << 20  # bytes per rank of one staging place
PLACES = 4  # staging places, so that copying in, adding and copying out overlap
DIRECT = 1 << 15  # bytes: up to here every rank adds everything itself, which saves one round of waiting

# share(sources, result, start, stop) does this rank's part of the piece [start, stop) of a tensor;
# take(result, start, stop) copies out what all have done.
Share = Callable[[Sequence[Tensor], Any, int, int], None]
Take = Callable[[Tensor, int, int], Any]


class Counters(Protocol):
    """Two counters per rank that all ranks can read, and a way to sleep until one moves."""

    def value(self, kind: int, rank: int) -> int: ...

    def bump(self, kind: int) -> None: ...

    def sleep(self, kind: int, rank: int, seen: int, seconds: float) -> None: ...

    def excuse(self, rank: int) -> str | None:
        """Why a rank will not answer any more, if it will not."""

    def name(self, rank: int) -> str: ...

    def leave(self, why: str) -> None: ...


class Place:
    """Memory for staging one piece: every rank's source, and the result that all can read."""

    def __init__(self, sources: Sequence[Tensor], result: Tensor) -> None:
        self.sources, self.result, self.user = sources, result, None  # type: Sequence[Tensor], Tensor, Op | None


class Op:
    """One operation in the queue."""

    def __init__(self, verb: str, key: object, share: Callable[[], None] | None = None) -> None:
        self.verb, self.key, self.number = verb, key, -1
        self.prepare: Callable[[], Any] | None = None
        self.share = share
        self.finish: Callable[[], Any] | None = None
        self.place: Place | None = None
        self.early = False  # finished for this rank as soon as its own share is done
        self.finished = False


class LockstepWork:
    """A handle on the last operation of a call; operations finish in order."""

    def __init__(self, comm: Lockstep, last: Op | None) -> None:
        self._comm, self._last = comm, last

    def wait(self, deadline: float | None = None) -> None:
        if self._last is not None:
            self._comm.wait_for(self._last, deadline)

    def done(self) -> bool:
        if self._last is None:
            return True
        self._comm.progress()
        return self._last.finished

    def then(self, after: Callable[[], Any]) -> LockstepWork:
        """Run `after` when the last operation finishes."""
        op = self._last
        if op is None or op.finished:
            after()
            return self
        before = op.finish
        op.finish = after if before is None else lambda: (before(), after())
        return self


class Lockstep:
    """The collectives of a comm whose ranks see each other's memory."""

    shares_results = True

    def __init__(self, rank: int, size: int, counters: Counters, deadline: float = DEADLINE) -> None:
        self.rank, self.size, self.deadline = rank, size, deadline
        self.placement = (0,) * size
        self._counters = counters
        self._unposted: deque[Op] = deque()
        self._posted: deque[Op] = deque()  # posted, not finished
        self._unshared: deque[Op] = deque()  # posted, my share not done
        self._posts = 0
        self._received = [0] * size
        self._places: dict[int, Place] = {}
        self._next_place = 0
        self._registered: list[tuple[int, int, Sequence[Tensor]]] = []
        self._results: list[tuple[int, int]] = []

    # memory -------------------------------------------------------------------------------------

    def _map_all(self, nbytes: int) -> Sequence[Tensor]:
        """One byte vector per rank, mine writable by me, all readable. Collective."""
        raise NotImplementedError

    def _map_one(self, nbytes: int) -> Tensor:
        """One byte vector for all ranks. Collective."""
        raise NotImplementedError

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        sources = [_typed(raw, numel, dtype) for raw in self._map_all(max(1, numel * dtype.itemsize))]
        mine = sources[self.rank]
        if numel:
            self._registered.append((mine.data_ptr(), mine.data_ptr() + mine.nbytes, sources))
        return mine

    def allocate_result(self, numel: int, dtype: torch.dtype) -> Tensor:
        result = _typed(self._map_one(max(1, numel * dtype.itemsize)), numel, dtype)
        self._results.append((result.data_ptr(), result.data_ptr() + result.nbytes))
        return result

    def _peers_of(self, src: Tensor) -> Sequence[Tensor] | None:
        """Every rank's view of the range that `src` covers, if it lies in registered memory."""
        for start, stop, sources in self._registered:
            if start <= src.data_ptr() < stop and sources[0].dtype == src.dtype:
                first = (src.data_ptr() - start) // src.itemsize
                return [source[first : first + src.numel()] for source in sources]
        return None

    def _is_result(self, dst: Tensor) -> bool:
        return any(start <= dst.data_ptr() < stop for start, stop in self._results)

    # collectives --------------------------------------------------------------------------------

    def all_sum(self, src: Tensor, dst: Tensor, key: object = "") -> LockstepWork:
        """dst = the sum of every rank's src; src is never written."""
        peers = self._peers_of(src) if self._is_result(dst) else None
        if peers is not None:
            op = Op("all_sum", key, lambda: self._share_sum(peers, dst))
            op.finish = lambda: self._count_results(dst)
            return self._submit(op)
        flat = _flat(dst)
        if src.nbytes <= DIRECT:
            return self._staged("all_sum", src, key, lambda sources, *_: self._add_all(sources, flat), early=True)

        def take(result: Tensor, start: int, stop: int) -> None:
            flat[start:stop].copy_(result)
            self._count_results(result)

        return self._staged(
            "all_sum", src, key, lambda sources, result, at, stop: self._share_sum(sources, result), take
        )

    def reduce_scatter(self, src: Tensor, dst: Tensor, key: object = "") -> LockstepWork:
        """dst = this rank's range, spread(numel, size), of the sum of every rank's src."""
        bounds = spread(src.numel(), self.size)
        low, high = bounds[self.rank], bounds[self.rank + 1]
        flat = _flat(dst)

        def share(sources: Sequence[Tensor], result: Tensor | None, start: int, stop: int) -> None:
            first, last = max(start, low), min(stop, high)
            if first < last:
                parts = [source[first - start : last - start] for source in sources]
                sum_into(flat[first - low : last - low], parts)
                self._count_sources(parts[0].nbytes)

        return self._read("reduce_scatter", src, key, share)

    def all_gather(self, src: Tensor, dst: Tensor, key: object = "") -> LockstepWork:
        """dst = every rank's src in rank order; all have the same length."""
        rows = _flat(dst).view(self.size, src.numel())

        def share(sources: Sequence[Tensor], result: Tensor | None, start: int, stop: int) -> None:
            for peer, source in enumerate(sources):
                rows[peer, start:stop].copy_(source)
            self._count_sources(sources[0].nbytes)

        return self._read("all_gather", src, key, share)

    def broadcast(self, tensor: Tensor, root: int = 0, key: object = "") -> LockstepWork:
        """tensor = the root's tensor."""
        if not tensor.is_contiguous():
            dense = tensor.contiguous()
            work = self.broadcast(dense, root, key)
            return work.then(lambda: tensor.copy_(dense))
        flat = _flat(tensor)

        def share(sources: Sequence[Tensor], result: Tensor | None, start: int, stop: int) -> None:
            if self.rank != root:
                flat[start:stop].copy_(sources[root])
                self._received[root] += sources[root].nbytes

        return self._staged("broadcast", flat, key, share)

    def barrier(self, deadline: float | None = None) -> None:
        self._submit(Op("barrier", "")).wait(deadline)

    def _share_sum(self, sources: Sequence[Tensor], result: Tensor) -> None:
        bounds = parts_of(result, self.size)
        mine = slice(bounds[self.rank], bounds[self.rank + 1])
        sum_into(result[mine], [source[mine] for source in sources])
        self._count_sources(result[mine].nbytes)

    def _add_all(self, sources: Sequence[Tensor], dst: Tensor) -> None:
        sum_into(dst, sources)
        self._count_sources(dst.nbytes)

    def _count_sources(self, nbytes: int) -> None:
        for peer in range(self.size):
            if peer != self.rank:
                self._received[peer] += nbytes

    def _count_results(self, result: Tensor) -> None:
        bounds = parts_of(result, self.size)
        for peer in range(self.size):
            if peer != self.rank:
                self._received[peer] += (bounds[peer + 1] - bounds[peer]) * result.itemsize

    def _read(self, verb: str, src: Tensor, key: object, share: Share) -> LockstepWork:
        """An operation that reads sources and needs no common result: in place where memory allows it."""
        peers = self._peers_of(src)
        if peers is None:
            return self._staged(verb, src, key, share)
        return self._submit(Op(verb, key, lambda: share(peers, None, 0, src.numel())))

    def _staged(
        self,
        verb: str,
        src: Tensor,
        key: object,
        share: Share,
        take: Take | None = None,
        early: bool = False,
    ) -> LockstepWork:
        """Any tensor, piece by piece through staging places: copying one piece overlaps adding another."""
        flat = src.reshape(-1)
        step = STAGING // flat.itemsize
        work = LockstepWork(self, None)
        for start in range(0, flat.numel(), step):
            op = self._piece(verb, key, flat[start : start + step], start, share, take)
            op.early = early
            work = self._submit(op)
        return work

    def _piece(self, verb: str, key: object, part: Tensor, start: int, share: Share, take: Take | None) -> Op:
        place, stop = self._place(), start + part.numel()
        sources = [_typed(raw, part.numel(), part.dtype) for raw in place.sources]
        result = _typed(place.result, part.numel(), part.dtype)
        op = Op(verb, key, lambda: share(sources, result, start, stop))
        op.place = place
        op.prepare = lambda: sources[self.rank].copy_(part)
        if take is not None:
            op.finish = lambda: take(result, start, stop)
        return op

    def _place(self) -> Place:
        index, self._next_place = self._next_place, (self._next_place + 1) % PLACES
        if index not in self._places:
            self._places[index] = Place(self._map_all(STAGING), self._map_one(STAGING))
        return self._places[index]

    # the queue ----------------------------------------------------------------------------------

    def _submit(self, op: Op) -> LockstepWork:
        self._unposted.append(op)
        self.progress()
        return LockstepWork(self, op)

    def progress(self) -> None:
        """Post, share and finish whatever can be, without sleeping."""
        moving = True
        while moving:
            moving = self._post_next()
            while self._unshared and self._all_past(POSTED, self._unshared[0].number):
                self._share_next()
                moving = True
            while self._posted and self._all_past(SHARED, self._posted[0].number):
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

    def _all_past(self, kind: int, number: int) -> bool:
        return all(_past(self._counters.value(kind, peer), number) for peer in range(self.size))

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
        for peer in range(self.size):
            seen = self._counters.value(kind, peer)
            if _past(seen, op.number):
                continue
            waited = time.monotonic() - began
            excuse = self._counters.excuse(peer) if waited > 0.05 else None
            if excuse and not _past(self._counters.value(kind, peer), op.number):
                raise PeerLost(f"{self._counters.name(peer)} {excuse} during {self._doing(op)}", rank=peer)
            if waited >= limit:
                raise PeerLost(
                    f"{self._counters.name(peer)} stopped answering in {self._doing(op)} after {waited:.1f} s",
                    rank=peer,
                    remedy="look at that rank's output; a step that needs longer takes --deadline SECONDS",
                )
            self._counters.sleep(kind, peer, seen, min(0.25, limit - waited))
            return

    def _doing(self, op: Op) -> str:
        return f"{op.verb} of {op.key}" if str(op.key) else op.verb

    def received(self) -> tuple[int, ...]:
        return tuple(self._received)

    def close(self, failure: str = "") -> None:
        self._counters.leave(failure or "left")
        self._registered.clear()
        self._places.clear()


def _past(value: int, number: int) -> bool:
    """Whether a counter of 32 bits, which may have wrapped, is above a number."""
    return (value - number - 1) & 0xFFFFFFFF < 0x80000000


def parts_of(vector: Tensor, size: int) -> tuple[int, ...]:
    """Bounds of each rank's part of a sum, cut at cache lines so that no two ranks write the same one."""
    return spread(vector.numel(), size, grain=max(1, 64 // vector.itemsize))


def _flat(tensor: Tensor) -> Tensor:
    return tensor.view(-1)


def _typed(raw: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
    return raw[: numel * dtype.itemsize].view(dtype)
