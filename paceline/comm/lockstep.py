"""Collectives among ranks that can read each other's memory, on the queue of queue.py.

Nobody writes the source of another rank. A comm split into groups shares queue, memory and counts with its
whole: all ranks post the same number of operations, in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import Any

import torch
from torch import Tensor

from paceline.comm.board import MemoryBoard
from paceline.comm.ground import STAGING, Ground, typed
from paceline.comm.queue import Op, QueueWork
from paceline.comm.sums import add_up, mix_into, sum_into
from paceline.comm.window import SharedBuffers
from paceline.errors import WrongCommand
from paceline.types import Mixing, Piece, spread

DIRECT = 1 << 15  # bytes: up to here every rank adds everything itself, which saves one round of waiting

# share(sources, result, start, stop) does this rank's part of the piece [start, stop) of a tensor;
# take(result, start, stop) copies out what all have done.
Share = Callable[[Sequence[Tensor], Any, int, int], None]
Take = Callable[[Tensor, int, int], Any]
Ranks = tuple[int, ...] | None
# combine(out, parts, start) writes what becomes of several ranks' ranges, which start there in the message.
Combine = Callable[[Tensor, Sequence[Tensor], int], None]


class Lockstep:
    """The collectives of some members of a ground; a rank is a position among the members."""

    shares_results = True
    service: Any = None  # of a job with servers: see service.py

    def __init__(self, ground: Ground, members: tuple[int, ...]) -> None:
        self._ground, self.members = ground, members
        self.rank, self.size = members.index(ground.rank), len(members)
        self.placement = (0,) * self.size
        self.deadline = ground.queue.deadline

    def allocate(self, numel: int, dtype: torch.dtype, givers: int | None = None) -> Tensor:
        return self._ground.allocate(numel, dtype, givers)

    def allocate_result(self, numel: int, dtype: torch.dtype, givers: int | None = None) -> Tensor:
        return self._ground.allocate_result(numel, dtype)

    def release(self, vector: Tensor) -> None:
        self._ground.release(vector)

    def all_sum(self, src: Tensor, dst: Tensor, key: object = "") -> QueueWork:
        """dst = the sum of every rank's src; src is never written."""
        peers = self._peers(src) if self._ground.is_result(dst) else None
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

    def sum_by(
        self,
        src: Tensor,
        dst: Tensor,
        pieces: Sequence[Piece],
        givers: int,
        key: object = "",
        combine: Combine = add_up,
    ) -> QueueWork:
        """dst = the sum of the first `givers` ranks' src, each piece added by its owner. The others only add."""
        owners = {piece.owner for piece in pieces}
        mine = [piece for piece in pieces if piece.owner == self.rank]

        def share(sources: Sequence[Tensor], result: Tensor, start: int, stop: int) -> None:
            for _, first, last in _inside(mine, start, stop):
                parts = [source[first - start : last - start] for source in sources[:givers]]
                combine(result[first - start : last - start], parts, first)
                self._count_sources(parts[0].nbytes, givers)

        def count(result: Tensor, start: int, stop: int) -> None:
            for owner, first, last in _inside(pieces, start, stop):
                if self.rank < givers and owner != self.rank:
                    self._ground.received[self.members[owner]] += (last - first) * result.itemsize

        def take(result: Tensor, start: int, stop: int) -> None:
            if self.rank < givers:
                flat[start:stop].copy_(result)
            count(result, start, stop)

        waits_for = tuple(self.members[:givers]) if mine else (self.members[self.rank],)
        readers = tuple(self.members[rank] for rank in sorted(owners | {self.rank}))
        readers = readers if self.rank < givers else (self.members[self.rank],)
        peers, flat = self._peers(src) if self._ground.is_result(dst) else None, _flat(dst)
        if peers is None:
            return self._staged("sum_by", src, key, share, take, False, None, None)
        op = Op("sum_by", key, lambda: share(peers, flat, 0, src.numel()))
        op.finish = lambda: count(flat, 0, src.numel())
        return self._submit(op, waits_for, readers)

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
                self._ground.received[self.members[root]] += sources[root].nbytes

        # Receivers wait for the root alone, and the root keeps its copy until all have read it.
        me = (self.members[self.rank],)
        readers = self.members if self.rank == root else me
        return self._staged("broadcast", flat, key, share, None, True, (self.members[root],), readers)

    def barrier(self, deadline: float | None = None) -> None:
        op = Op("barrier", "")
        op.early = True
        self._submit(op).wait(deadline)

    def mix(self, src: Tensor, dst: Tensor, mixing: Mixing, key: object = "") -> QueueWork:
        """dst = keep x src + the weighted sources of some ranks. Waits for those ranks only."""
        flat, own = _flat(dst), src.reshape(-1)

        def share(sources: Sequence[Tensor], result: Tensor | None, start: int, stop: int) -> None:
            out = flat[start:stop]
            heard = [(sources[peer], weight) for peer, weight in mixing.sources]
            mix_into(out, own[start:stop], mixing.keep, heard)
            for peer, _ in mixing.sources:
                self._ground.received[self.members[peer]] += out.nbytes

        around = (self.rank, *(peer for peer, _ in mixing.sources)), (self.rank, *mixing.targets)
        waits_for, readers = (tuple(self.members[peer] for peer in peers) for peers in around)
        return self._read("mix", src, key, share, waits_for, readers)

    def window(
        self, numel: int, dtype: torch.dtype, sources: Sequence[Sequence[int]], shows: bool = True
    ) -> SharedBuffers:
        """Memory that sources[r] may write on rank r without its help; of the whole comm. Collective."""
        if self.size != self._ground.size:
            raise WrongCommand(
                "a window of some ranks", why="its memory belongs to all of them", remedy="a run without servers"
            )
        return SharedBuffers(self._ground, numel, dtype, sources, shows)

    def board(self, length: int) -> MemoryBoard:
        """Where rank 0 says what all do next; at most `length` numbers are on it. Collective."""
        return MemoryBoard(self._ground, self.members[0], length)

    def split(self, groups: Sequence[Sequence[int]]) -> Lockstep:
        """The comm of this rank's group. Groups cover all ranks; each makes the same calls with the same sizes."""
        mine = next(group for group in groups if self.rank in group)
        return Lockstep(self._ground, tuple(self.members[peer] for peer in mine))

    def _share_sum(self, sources: Sequence[Tensor], result: Tensor) -> None:
        bounds = parts_of(result, self.size)
        mine = slice(bounds[self.rank], bounds[self.rank + 1])
        sum_into(result[mine], [source[mine] for source in sources])
        self._count_sources(result[mine].nbytes)

    def _add_all(self, sources: Sequence[Tensor], dst: Tensor) -> None:
        sum_into(dst, sources)
        self._count_sources(dst.nbytes)

    def _count_sources(self, nbytes: int, givers: int | None = None) -> None:
        for peer, member in enumerate(self.members[:givers]):
            if peer != self.rank:
                self._ground.received[member] += nbytes

    def _count_results(self, result: Tensor) -> None:
        bounds = parts_of(result, self.size)
        for peer, member in enumerate(self.members):
            if peer != self.rank:
                self._ground.received[member] += (bounds[peer + 1] - bounds[peer]) * result.itemsize

    def _read(
        self, verb: str, src: Tensor, key: object, share: Share, waits_for: Ranks = None, readers: Ranks = None
    ) -> QueueWork:
        """An operation that reads sources and needs no common result: in place where memory allows it."""
        peers = self._peers(src)
        if peers is None:
            return self._staged(verb, src, key, share, None, True, waits_for, readers)
        return self._submit(Op(verb, key, lambda: share(peers, None, 0, src.numel())), waits_for, readers)

    def _peers(self, src: Tensor) -> Sequence[Tensor] | None:
        """Every member's view of a registered range."""
        everybody = self._ground.peers_of(src)
        return None if everybody is None else [everybody[member] for member in self.members]

    def _submit(self, op: Op, waits_for: Ranks = None, readers: Ranks = None) -> QueueWork:
        op.waits_for = self.members if waits_for is None else waits_for
        op.readers = self.members if readers is None else readers
        return self._ground.queue.submit(op)

    def _staged(
        self,
        verb: str,
        src: Tensor,
        key: object,
        share: Share,
        take: Take | None = None,
        early: bool = False,
        waits_for: Ranks = None,
        readers: Ranks = None,
    ) -> QueueWork:
        """Any tensor, piece by piece through staging places: copying one piece overlaps adding another."""
        flat = src.reshape(-1)
        step = STAGING // flat.itemsize
        work = QueueWork(self._ground.queue, None)
        for start in range(0, flat.numel(), step):
            op = self._piece(verb, key, flat[start : start + step], start, share, take)
            op.early = early
            work = self._submit(op, waits_for, readers)
        return work

    def _piece(self, verb: str, key: object, part: Tensor, start: int, share: Share, take: Take | None) -> Op:
        place, stop = self._ground.place(), start + part.numel()
        sources = [typed(place.sources[member], part.numel(), part.dtype) for member in self.members]
        result = typed(place.results[self.members[0]], part.numel(), part.dtype)
        op = Op(verb, key, lambda: share(sources, result, start, stop))
        op.place = place
        op.prepare = lambda: sources[self.rank].copy_(part)
        if take is not None:
            op.finish = lambda: take(result, start, stop)
        return op

    def progress(self) -> None:
        self._ground.queue.progress()

    def received(self) -> tuple[int, ...]:
        """Bytes that this rank got so far from each rank of the whole ground, and from servers behind them."""
        windows = self._ground.windows
        own = [
            nbytes + sum(window.deposited(source) for window in windows)
            for source, nbytes in enumerate(self._ground.received)
        ]
        return (
            tuple(own)
            if self.service is None
            else tuple(map(add, (*own, *(0,) * self.service.servers), self.service.received()))
        )

    def get_ready(self) -> None:
        """Take now what would be taken on first use, where that could meet others in another order. Collective."""
        self._ground.fill_places()

    def excuse(self, rank: int) -> str | None:
        """Why a rank will not answer any more, if it will not."""
        return self._ground.counters.excuse(self.members[rank])

    def close(self, failure: str = "") -> None:
        if self.service is not None:
            self.service.close(failure, self.barrier)
        self._ground.counters.leave(failure or "left")
        self._ground.clear()


def parts_of(vector: Tensor, size: int) -> tuple[int, ...]:
    """Bounds of each rank's part of a sum, cut at cache lines so that no two ranks write the same one."""
    return spread(vector.numel(), size, grain=max(1, 64 // vector.itemsize))


def _inside(pieces: Sequence[Piece], start: int, stop: int) -> list[Piece]:
    """What of the pieces lies in [start, stop)."""
    cut = [Piece(owner, max(first, start), min(last, stop)) for owner, first, last in pieces]
    return [piece for piece in cut if piece.start < piece.stop]


def _flat(tensor: Tensor) -> Tensor:
    return tensor.view(-1)
