"""Collectives among ranks that can read each other's memory, on the queue of queue.py.

Nobody writes the source of another rank. How counters are kept and slept on, and how one rank sees the memory
of another, is left to the comm (`shm`: futexes and memfd; `thread`: a condition).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.comm.queue import DEADLINE, Counters, Op, Queue, QueueWork
from paceline.comm.sums import sum_into
from paceline.types import spread

STAGING = 1 << 20  # bytes per rank of one staging place
PLACES = 4  # staging places, so that copying in, adding and copying out overlap
DIRECT = 1 << 15  # bytes: up to here every rank adds everything itself, which saves one round of waiting

# share(sources, result, start, stop) does this rank's part of the piece [start, stop) of a tensor;
# take(result, start, stop) copies out what all have done.
Share = Callable[[Sequence[Tensor], Any, int, int], None]
Take = Callable[[Tensor, int, int], Any]


class Staging:
    """Memory for staging one piece: every rank's source, and the result that all can read."""

    def __init__(self, sources: Sequence[Tensor], result: Tensor) -> None:
        self.sources, self.result, self.user = sources, result, None  # type: Sequence[Tensor], Tensor, Op | None


class Lockstep:
    """The collectives of a comm whose ranks see each other's memory."""

    shares_results = True

    def __init__(self, rank: int, size: int, counters: Counters, deadline: float = DEADLINE) -> None:
        self.rank, self.size = rank, size
        self.placement = (0,) * size
        self._counters = counters
        self._queue = Queue(size, counters, deadline)
        self._received = [0] * size
        self._places: dict[int, Staging] = {}
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

    def all_sum(self, src: Tensor, dst: Tensor, key: object = "") -> QueueWork:
        """dst = the sum of every rank's src; src is never written."""
        peers = self._peers_of(src) if self._is_result(dst) else None
        if peers is not None:
            op = Op("all_sum", key, lambda: self._share_sum(peers, dst))
            op.finish = lambda: self._count_results(dst)
            return self._queue.submit(op)
        flat = _flat(dst)
        if src.nbytes <= DIRECT:
            return self._staged("all_sum", src, key, lambda sources, *_: self._add_all(sources, flat), early=True)

        def take(result: Tensor, start: int, stop: int) -> None:
            flat[start:stop].copy_(result)
            self._count_results(result)

        return self._staged(
            "all_sum", src, key, lambda sources, result, at, stop: self._share_sum(sources, result), take
        )

    def reduce_scatter(self, src: Tensor, dst: Tensor, key: object = "") -> QueueWork:
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

    def all_gather(self, src: Tensor, dst: Tensor, key: object = "") -> QueueWork:
        """dst = every rank's src in rank order; all have the same length."""
        rows = _flat(dst).view(self.size, src.numel())

        def share(sources: Sequence[Tensor], result: Tensor | None, start: int, stop: int) -> None:
            for peer, source in enumerate(sources):
                rows[peer, start:stop].copy_(source)
            self._count_sources(sources[0].nbytes)

        return self._read("all_gather", src, key, share)

    def broadcast(self, tensor: Tensor, root: int = 0, key: object = "") -> QueueWork:
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
        op = Op("barrier", "")
        op.early = True
        self._queue.submit(op).wait(deadline)

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

    def _read(self, verb: str, src: Tensor, key: object, share: Share) -> QueueWork:
        """An operation that reads sources and needs no common result: in place where memory allows it."""
        peers = self._peers_of(src)
        if peers is None:
            return self._staged(verb, src, key, share, early=True)
        return self._queue.submit(Op(verb, key, lambda: share(peers, None, 0, src.numel())))

    def _staged(
        self,
        verb: str,
        src: Tensor,
        key: object,
        share: Share,
        take: Take | None = None,
        early: bool = False,
    ) -> QueueWork:
        """Any tensor, piece by piece through staging places: copying one piece overlaps adding another."""
        flat = src.reshape(-1)
        step = STAGING // flat.itemsize
        work = QueueWork(self._queue, None)
        for start in range(0, flat.numel(), step):
            op = self._piece(verb, key, flat[start : start + step], start, share, take)
            op.early = early
            work = self._queue.submit(op)
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

    def _place(self) -> Staging:
        index, self._next_place = self._next_place, (self._next_place + 1) % PLACES
        if index not in self._places:
            self._places[index] = Staging(self._map_all(STAGING), self._map_one(STAGING))
        return self._places[index]

    def progress(self) -> None:
        self._queue.progress()

    def received(self) -> tuple[int, ...]:
        return tuple(self._received)

    def close(self, failure: str = "") -> None:
        self._counters.leave(failure or "left")
        self._registered.clear()
        self._places.clear()


def parts_of(vector: Tensor, size: int) -> tuple[int, ...]:
    """Bounds of each rank's part of a sum, cut at cache lines so that no two ranks write the same one."""
    return spread(vector.numel(), size, grain=max(1, 64 // vector.itemsize))


def _flat(tensor: Tensor) -> Tensor:
    return tensor.view(-1)


def _typed(raw: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
    return raw[: numel * dtype.itemsize].view(dtype)
