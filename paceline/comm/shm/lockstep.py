"""Collectives among ranks that can read each other's memory, on the queue of queue.py.

No rank writes to the source of another. A group made by split() shares the memory and the byte counts of the whole
comm, but has its own queue: only its members must make the calls of the group in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import Any

import torch
from torch import Tensor

from paceline.comm.notes import tensor_text
from paceline.comm.shm.board import MemoryBoard
from paceline.comm.shm.one_sided import SharedBuffers
from paceline.comm.shm.private import PrivateView
from paceline.comm.shm.queue import Op, QueueWork
from paceline.comm.shm.space import STAGING, SharedSpace
from paceline.comm.sums import add_up, mix_into, sum_into
from paceline.comm.transport import Work
from paceline.errors import WrongCommand
from paceline.types import Mixing, Piece, spread

DIRECT = 1 << 15  # bytes; up to this size every rank adds the whole sum itself, which saves one round of waiting

# share(sources, result, start, stop) does this rank's part of the piece [start, stop) of a tensor, or starts it;
# take(result, start, stop) copies the finished result out.
Share = Callable[[Sequence[Tensor], Any, int, int], Work | None]
Take = Callable[[Tensor, int, int], Any]
Ranks = tuple[int, ...] | None
# combine(out, parts, start) writes the combination of several ranks' ranges; `start` is their offset in the message.
Combine = Callable[[Tensor, Sequence[Tensor], int], None]


class Lockstep:
    """Collectives among some members of a shared space. A rank is a position among these members."""

    shares_results = names_ranks = True
    segment = 0
    engines = 0
    service: Any = None  # set in a job with servers, see comm/service.py

    def __init__(self, space: SharedSpace, members: tuple[int, ...]) -> None:
        self._space, self.members = space, members
        self.rank, self.size = members.index(space.rank), len(members)
        self.placement = (0,) * self.size
        self.deadline = space.queue.deadline
        self.check_process = space.counters.check_process  # called for every gradient: no call in between
        self.progress = space.queue.progress

    def allocate(self, numel: int, dtype: torch.dtype, givers: int | None = None) -> Tensor:
        return self._space.allocate(numel, dtype, givers)

    def allocate_result(self, numel: int, dtype: torch.dtype, givers: int | None = None) -> Tensor:
        return self._space.allocate_result(numel, dtype)

    def private_view(self, result: Tensor) -> PrivateView | None:
        return self._space.private_view(result)

    def release(self, vector: Tensor) -> None:
        self._space.release(vector)

    def all_sum(self, src: Tensor, dst: Tensor, key: object = "") -> QueueWork:
        """Start dst = the sum of every rank's src. src is never written."""
        peers = self.peers(src) if self._space.is_result(dst) else None
        if peers is not None:
            op = Op("all_sum", key, lambda: self._share_sum(peers, dst), tensor_text(src))
            op.finish = lambda: self._count_results(dst)
            return self.submit(op)
        flat = _flat(dst)
        if src.nbytes <= DIRECT:
            return self.staged("all_sum", src, key, lambda sources, *_: self._add_all(sources, flat), early=True)

        def take(result: Tensor, start: int, stop: int) -> None:
            flat[start:stop].copy_(result)
            self._count_results(result)

        return self.staged(
            "all_sum", src, key, lambda sources, result, at, stop: self._share_sum(sources, result), take
        )

    def reduce_scatter(self, src: Tensor, dst: Tensor, key: object = "") -> QueueWork:
        """Start dst = this rank's range of the sum of every rank's src. spread(numel, size) gives the ranges."""
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
        """Start dst = the sum of src over the ranks below `givers`. The owner of each piece adds it up.

        Ranks from `givers` on contribute no src; they only own pieces.
        """
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
                    self._space.received[self.members[owner]] += (last - first) * result.itemsize

        def take(result: Tensor, start: int, stop: int) -> None:
            if self.rank < givers:
                flat[start:stop].copy_(result)
            count(result, start, stop)

        waits_for = tuple(self.members[:givers]) if mine else (self.members[self.rank],)
        readers = tuple(self.members[rank] for rank in sorted(owners | {self.rank}))
        readers = readers if self.rank < givers else (self.members[self.rank],)
        peers, flat = self.peers(src) if self._space.is_result(dst) else None, _flat(dst)
        if peers is None:
            return self.staged("sum_by", src, key, share, take, False, None, None, "")
        op = Op("sum_by", key, lambda: share(peers, flat, 0, src.numel()), tensor_text(src), "")
        op.finish = lambda: count(flat, 0, src.numel())
        return self.submit(op, waits_for, readers)

    def all_gather(self, src: Tensor, dst: Tensor, key: object = "") -> QueueWork:
        """Start dst = every rank's src in rank order. All src have the same length."""
        rows = _flat(dst).view(self.size, src.numel())

        def share(sources: Sequence[Tensor], result: Tensor | None, start: int, stop: int) -> None:
            for peer, source in enumerate(sources):
                rows[peer, start:stop].copy_(source)
            self._count_sources(sources[0].nbytes)

        return self._read("all_gather", src, key, share)

    def broadcast(self, tensor: Tensor, root: int = 0, key: object = "") -> QueueWork:
        """Start tensor = the root's tensor, on every rank."""
        if not tensor.is_contiguous():
            dense = tensor.contiguous()
            work = self.broadcast(dense, root, key)
            return work.then(lambda: tensor.copy_(dense))
        flat = _flat(tensor)

        def share(sources: Sequence[Tensor], result: Tensor | None, start: int, stop: int) -> None:
            if self.rank != root:
                flat[start:stop].copy_(sources[root])
                self._space.received[self.members[root]] += sources[root].nbytes

        # Receivers wait for the root alone, and the root keeps its copy until all have read it.
        me = (self.members[self.rank],)
        readers = self.members if self.rank == root else me
        note = f"{key}, from rank {root}"
        return self.staged("broadcast", flat, key, share, None, True, (self.members[root],), readers, note)

    def barrier(self, deadline: float | None = None) -> None:
        op = Op("barrier", "")
        op.early = True
        self.submit(op).wait(deadline)

    def mix(self, src: Tensor, dst: Tensor, mixing: Mixing, key: object = "") -> QueueWork:
        """Start dst = keep * src + the weighted src of the sources. Only the ranks of `mixing` wait for each other."""
        flat, own = _flat(dst), src.reshape(-1)

        def share(sources: Sequence[Tensor], result: Tensor | None, start: int, stop: int) -> None:
            out = flat[start:stop]
            heard = [(sources[peer], weight) for peer, weight in mixing.sources]
            mix_into(out, own[start:stop], mixing.keep, heard)
            for peer, _ in mixing.sources:
                self._space.received[self.members[peer]] += out.nbytes

        around = (self.rank, *(peer for peer, _ in mixing.sources)), (self.rank, *mixing.targets)
        waits_for, readers = (tuple(self.members[peer] for peer in peers) for peers in around)
        return self._read("mix", src, key, share, waits_for, readers)

    def agree(self, verb: str, length: str = "", key: object = "") -> QueueWork:
        """Return a finished work, because the queue compares every call anyway."""
        return QueueWork(self._space.queue, None)

    def window(
        self, numel: int, dtype: torch.dtype, sources: Sequence[Sequence[int]], shows: bool = True
    ) -> SharedBuffers:
        """Create memory on every rank r that the ranks in sources[r] may write to without its help. Collective."""
        if self.size != self._space.size:
            raise WrongCommand(
                "a window of some ranks only",
                why="its memory is allocated by all ranks of the job",
                remedy="a run without servers",
            )
        return SharedBuffers(self._space, numel, dtype, sources, shows)

    def board(self, length: int) -> MemoryBoard:
        """Create a Board of `length` numbers on which rank 0 announces what all ranks do next. Collective."""
        return MemoryBoard(self._space, self.members[0], length)

    def split(self, groups: Sequence[Sequence[int]]) -> Lockstep:
        """Return the comm of this rank's group, which has a queue of its own. Groups cover all ranks. Collective."""
        mine = next(group for group in groups if self.rank in group)
        return Lockstep(self._space.branch(), tuple(self.members[peer] for peer in mine))

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
                self._space.received[member] += nbytes

    def _count_results(self, result: Tensor) -> None:
        bounds = parts_of(result, self.size)
        for peer, member in enumerate(self.members):
            if peer != self.rank:
                self._space.received[member] += (bounds[peer + 1] - bounds[peer]) * result.itemsize

    def _read(
        self, verb: str, src: Tensor, key: object, share: Share, waits_for: Ranks = None, readers: Ranks = None
    ) -> QueueWork:
        """Submit an operation without a shared result. Allocated sources are read in place; others are copied."""
        peers = self.peers(src)
        if peers is None:
            return self.staged(verb, src, key, share, None, True, waits_for, readers)
        op = Op(verb, key, lambda: share(peers, None, 0, src.numel()), tensor_text(src))
        return self.submit(op, waits_for, readers)

    def peers(self, src: Tensor) -> Sequence[Tensor] | None:
        """Return the range that `src` covers, in the memory of every member; None if `src` was not allocated here."""
        everybody = self._space.peers_of(src)
        return None if everybody is None else [everybody[member] for member in self.members]

    def submit(self, op: Op, waits_for: Ranks = None, readers: Ranks = None) -> QueueWork:
        op.waits_for = self.members if waits_for is None else waits_for
        op.readers = self.members if readers is None else readers
        return self._space.queue.submit(op)

    def staged(
        self,
        verb: str,
        src: Tensor,
        key: object,
        share: Share,
        take: Take | None = None,
        early: bool = False,
        waits_for: Ranks = None,
        readers: Ranks = None,
        note: object = None,
    ) -> QueueWork:
        """Submit one operation per piece of a tensor. Copies into staging memory overlap with sums of other pieces."""
        flat = src.reshape(-1)
        step = STAGING // flat.itemsize
        work = QueueWork(self._space.queue, None)
        for start in range(0, flat.numel(), step):
            op = self._piece(verb, key, flat, start, share, take, note)
            op.early = early
            work = self.submit(op, waits_for, readers)
        return work

    def _piece(
        self, verb: str, key: object, whole: Tensor, start: int, share: Share, take: Take | None, note: object
    ) -> Op:
        most = STAGING // whole.itemsize
        part = whole if whole.numel() <= most else whole[start : start + most]
        place, stop = self._space.place(lambda: f"{verb} of {tensor_text(whole)}, {key}"), start + part.numel()
        sources, result = place.views(self.members, part.numel(), part.dtype)
        op = Op(verb, key, lambda: share(sources, result, start, stop), tensor_text(whole, start), note)
        op.place = place
        op.prepare = lambda: sources[self.rank].copy_(part)
        if take is not None:
            op.finish = lambda: take(result, start, stop)
        return op

    def is_result(self, dst: Tensor) -> bool:
        """Return whether a tensor lies in memory from allocate_result, which all ranks share."""
        return self._space.is_result(dst)

    def count(self, rank: int, nbytes: int) -> None:
        """Count bytes that this rank has read from a rank."""
        self._space.received[self.members[rank]] += nbytes

    def received(self) -> tuple[int, ...]:
        """Return the bytes received so far from each rank of the whole space, followed by the servers."""
        windows = self._space.windows
        own = [
            nbytes + sum(window.deposited(source) for window in windows)
            for source, nbytes in enumerate(self._space.received)
        ]
        return (
            tuple(own)
            if self.service is None
            else tuple(map(add, (*own, *(0,) * self.service.servers), self.service.received()))
        )

    def get_ready(self) -> None:
        """Allocate the staging memory now. On first use, ranks could allocate it in different orders. Collective."""
        self._space.fill_places()

    def why_lost(self, rank: int) -> str | None:
        """Return why a rank will not answer any more, or None."""
        return self._space.counters.why_lost(self.members[rank])

    def close(self, failure: str = "", abandoned: bool = False) -> None:
        if self.service is not None:
            self.service.close(failure, self.barrier)
        try:
            if not failure and self.size > 1:
                self._space.queue.end(self.members)
        finally:
            self._space.counters.leave(failure or "left")
            self._space.clear()


def parts_of(vector: Tensor, size: int) -> tuple[int, ...]:
    """Return the bounds of each rank's part of a sum. They are on cache lines, so no two ranks write to one line."""
    return spread(vector.numel(), size, grain=max(1, 64 // vector.itemsize))


def _inside(pieces: Sequence[Piece], start: int, stop: int) -> list[Piece]:
    """Return the parts of the pieces that lie in [start, stop)."""
    cut = [Piece(owner, max(first, start), min(last, stop)) for owner, first, last in pieces]
    return [piece for piece in cut if piece.start < piece.stop]


def _flat(tensor: Tensor) -> Tensor:
    return tensor.view(-1)
