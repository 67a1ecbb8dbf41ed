"""Sums of CPU tensors on several hosts: shared memory inside a host, torch.distributed between hosts.

    host a   rank 0  | a0 + a1 |         |   <- the hosts sum slice 0 among their first ranks ->    rank 2   host b
             rank 1  |         | a0 + a1 |   <- slice 1 among their second ranks              ->    rank 3

    post      this rank's source is in place
    share     add this rank's slice of the host's sources, then sum it with the ranks that own the same slice elsewhere
    finish    the result of the host is complete; all its ranks share the memory

Every rank sends its own slice over the network. There are as many slices as ranks on the smallest host; the other
ranks of larger hosts own no slice, and only contribute their source and read the result. Calls other than sums go to
torch.distributed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.comm.notes import SequencePart, tensor_text
from paceline.comm.rendezvous import TextStore
from paceline.comm.shm.lockstep import parts_of
from paceline.comm.shm.queue import Op, QueueWork
from paceline.comm.shm.shm import ShmComm
from paceline.comm.sums import sum_into
from paceline.comm.torch.gloo import TorchDist
from paceline.comm.transport import Work
from paceline.errors import PeerLost
from paceline.types import Unit


class NodeComm:
    """A comm of torch.distributed in which every slice of a sum crosses hosts once. Creating it is collective."""

    shares_results = names_ranks = True
    segment = 0
    store: Any = None

    def __init__(self, whole: TorchDist, store: TextStore, folder: Path | None = None) -> None:
        self._whole, self.placement = whole, whole.placement
        self.rank, self.size, self.deadline = whole.rank, whole.size, whole.deadline
        self.members, self.engines = whole.members, 0
        self._waiting: deque[ComparedShare] = deque()
        hosts = ranks_by_host(whole.placement)
        self.host = hosts[whole.placement[whole.rank]]  # the ranks of this host
        place = self.host.index(whole.rank)
        self._slices = min(map(len, hosts.values()))
        self._place = place if place < self._slices else None
        name = f"node-{whole.placement[whole.rank]}"
        self._inside = ShmComm(place, len(self.host), store, whole.deadline, folder, name, names=self.host)
        # All ranks create all groups, in one order; a rank without a slice has a group of its own.
        groups = [[ranks[k] for ranks in hosts.values()] for k in range(self._slices)]
        groups += [[rank] for ranks in hosts.values() for rank in ranks[self._slices :]]
        self._across = whole.split(groups)

    def __getattr__(self, name: str) -> Any:
        """Pass all other calls to torch.distributed."""
        return getattr(self._whole, name)

    # memory of this host ----------------------------------------------------------------------------------

    def allocate(self, numel: int, dtype: torch.dtype, givers: int | None = None) -> Tensor:
        return self._inside.allocate(numel, dtype)

    def allocate_result(self, numel: int, dtype: torch.dtype, givers: int | None = None) -> Tensor:
        return self._inside.allocate_result(numel, dtype)

    def release(self, vector: Tensor) -> None:
        self._inside.release(vector)

    # the sum ----------------------------------------------------------------------------------------------

    def all_sum(self, src: Tensor, dst: Tensor, key: object = "") -> NodeWork:
        """Start dst = the sum of every rank's src. src is never written."""
        inside, comparison = self._inside, None
        if not isinstance(key, (Unit, SequencePart)):  # not part of a step, whose calls were compared as a whole
            comparison = self._whole.agree("all_sum", tensor_text(src), key)
        peers = inside.peers(src) if inside.is_result(dst) else None
        if peers is not None:
            op = Op("all_sum", key, lambda: self._share(peers, dst.view(-1), comparison), tensor_text(src))
            op.finish = lambda: self._count_results(dst)
            return NodeWork(self, inside.submit(op))
        flat = dst.view(-1)

        def take(result: Tensor, start: int, stop: int) -> None:
            flat[start:stop].copy_(result)
            self._count_results(result)

        def share(sources: Sequence[Tensor], result: Tensor, start: int, stop: int) -> Work | None:
            return self._share(sources, result, comparison)

        return NodeWork(self, inside.staged("all_sum", src, key, share, take))

    def _share(self, sources: Sequence[Tensor], result: Tensor, comparison: Work | None) -> Work | None:
        """Begin this rank's slice now, or once ranks have compared the call. Slices begin in the order of calls."""
        if not self._waiting and (comparison is None or comparison.done()):
            if comparison is not None:
                comparison.wait()
            return self._begin(sources, result)
        waiting = ComparedShare(self._waiting, comparison, lambda: self._begin(sources, result))
        self._waiting.append(waiting)
        return waiting

    def _begin(self, sources: Sequence[Tensor], result: Tensor) -> Work | None:
        """Sum this rank's slice over the sources of this host, then start the sum of that slice across hosts."""
        if self._place is None:
            return None
        bounds = parts_of(result, self._slices)
        mine = slice(bounds[self._place], bounds[self._place + 1])
        part = result[mine]
        sum_into(part, [source[mine] for source in sources])
        for local in range(len(self.host)):
            if self.host[local] != self.rank:
                self._inside.count(local, part.nbytes)
        if not part.numel() or self._across.size == 1:
            return None
        return self._across.all_sum(part, part, SequencePart("a slice"))

    def _count_results(self, result: Tensor) -> None:
        bounds = parts_of(result, self._slices)
        for local in range(self._slices):
            if local != self._place:
                self._inside.count(local, (bounds[local + 1] - bounds[local]) * result.itemsize)

    # splitting and counting
    # --------------------------------------------------------------------------------------------

    def split(self, groups: Sequence[Sequence[int]]) -> Any:
        """Return the comm of this rank's group. It uses shared memory if no group spans two hosts. Collective."""
        if all(len({self.placement[rank] for rank in group}) == 1 for group in groups):
            mine = [[self.host.index(rank) for rank in group] for group in groups if group[0] in self.host]
            return self._inside.split(mine)
        return self._whole.split(groups)

    def progress(self) -> None:
        self._inside.progress()

    def get_ready(self) -> None:
        self._inside.get_ready()

    def received(self) -> tuple[int, ...]:
        """Return the bytes received so far from each rank, in memory and over the network."""
        total = list(self._whole.received())
        for local, nbytes in enumerate(self._inside.received()):
            total[self.host[local]] += nbytes
        return tuple(total)

    def why_lost(self, rank: int) -> str | None:
        return self._inside.why_lost(self.host.index(rank)) if rank in self.host else self._whole.why_lost(rank)

    def close(self, failure: str = "", abandoned: bool = False) -> None:
        try:
            self._inside.close(failure)
        finally:
            self._whole.close(failure, abandoned)


class ComparedShare(Work):
    """A slice that begins once ranks have compared its call and all earlier slices have begun."""

    def __init__(self, line: deque[ComparedShare], comparison: Work | None, begin: Callable[[], Work | None]) -> None:
        self._line, self._comparison, self._begin = line, comparison, begin
        self._begun = False
        self._work: Work | None = None

    def wait(self, deadline: float | None = None) -> None:
        """Raise NotImplementedError. The queue polls done() instead of waiting."""
        raise NotImplementedError

    def done(self) -> bool:
        if not self._begun:
            if self._line[0] is not self or not (self._comparison is None or self._comparison.done()):
                return False
            if self._comparison is not None:
                self._comparison.wait()
            self._line.popleft()
            self._begun, self._work = True, self._begin()
        return self._work is None or self._work.done()


class NodeWork(Work):
    """An operation in the queue of a host. Its errors name ranks of the job instead of ranks of the host."""

    def __init__(self, comm: NodeComm, work: QueueWork) -> None:
        self._comm, self._work = comm, work

    def wait(self, deadline: float | None = None) -> None:
        try:
            self._work.wait(deadline)
        except PeerLost as problem:
            if problem.rank is not None:
                problem.rank = self._comm.host[problem.rank]
            raise

    def done(self) -> bool:
        return self._work.done()

    def landed(self) -> bool:
        return self._work.landed()


def ranks_by_host(placement: Sequence[int]) -> dict[int, list[int]]:
    """Return the ranks of each host in ascending order. Hosts are in the order of their first rank."""
    grouped: dict[int, list[int]] = {}
    for rank, host in enumerate(placement):
        grouped.setdefault(host, []).append(rank)
    return grouped
