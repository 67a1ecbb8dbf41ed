"""torch.distributed as a comm, and gloo for CPU tensors; nccl.py has what is other with CUDA tensors.

Bytes are those of the ring that both libraries use for large sums; nothing on this side can count them.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.comm.groupboard import GroupBoard
from paceline.comm.lockstep import Combine, parts_of
from paceline.comm.queue import DEADLINE
from paceline.comm.served import ServedBuffers, WindowService
from paceline.comm.sums import add_up, mix_into, sum_into
from paceline.comm.torchwork import Added, Together, TorchWork
from paceline.errors import WrongCommand
from paceline.types import Mixing, Piece, spread

_WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64, torch.bool: torch.int32}
Message = tuple[Tensor, int]  # and the rank that it goes to or comes from


class TorchDist:
    """The collectives of one process group."""

    shares_results = False
    service: Any = None  # of a job with servers: see service.py
    backend = ""

    def __init__(
        self, rank: int, size: int, store: Any = None, deadline: float = DEADLINE, nodes: tuple[int, ...] = ()
    ) -> None:
        self.rank, self.size, self.deadline = rank, size, deadline
        self.placement = nodes or (0,) * size
        self.members = tuple(range(size))
        self._received = [0] * size
        self._tags = 0
        self._windows: WindowService | None = None
        self._written, self._counting = [0] * size, threading.Lock()
        self._owns = not dist.is_initialized()
        if self._owns:
            if len(set(self.placement)) == 1:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # loopback unless asked otherwise
            dist.init_process_group(
                self.backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=deadline)
            )
            self._group = dist.group.WORLD
        else:
            self._group = dist.new_group(backend=self.backend, timeout=timedelta(seconds=deadline))

    def allocate(self, numel: int, dtype: torch.dtype, givers: int | None = None) -> Tensor:
        return torch.zeros(numel, dtype=dtype, device=self._device())

    def allocate_result(self, numel: int, dtype: torch.dtype, givers: int | None = None) -> Tensor:
        return torch.zeros(numel, dtype=dtype, device=self._device())

    def release(self, vector: Tensor) -> None:
        """Nobody else knows of it."""

    def _device(self) -> torch.device:
        return torch.device("cpu")

    def limit(self, deadline: float | None) -> tuple[timedelta, ...]:
        """What a work of torch.distributed is told to wait for at most."""
        return (timedelta(seconds=self.deadline if deadline is None else deadline),)

    def all_sum(self, src: Tensor, dst: Tensor, key: object = "") -> TorchWork:
        if not src.numel():
            return TorchWork(self, None, "")
        if src.dtype in _WIDER:
            return self._wide_sum(src, dst, key)
        dst.copy_(src)
        bounds = parts_of(src, self.size)
        mine = bounds[self.rank + 1] - bounds[self.rank]
        for peer, member in enumerate(self.members):
            if peer != self.rank:
                self._received[member] += (mine + bounds[peer + 1] - bounds[peer]) * src.itemsize
        return self._start("all_sum", key, dist.all_reduce(dst, group=self._group, async_op=True))

    def _wide_sum(self, src: Tensor, dst: Tensor, key: object) -> TorchWork:
        """For the dtypes that gloo and nccl do not add."""
        wide = src.to(_WIDER[src.dtype])
        total = torch.empty_like(wide)
        return self.all_sum(wide, total, key).then(lambda: dst.copy_(total))

    def reduce_scatter(self, src: Tensor, dst: Tensor, key: object = "") -> TorchWork:
        """Everybody sends everybody their range; added in rank order, so that bits do not depend on timing."""
        bounds, flat = spread(src.numel(), self.size), src.reshape(-1).contiguous()
        ranges = [flat[bounds[peer] : bounds[peer + 1]] for peer in range(self.size)]
        mine, others = ranges[self.rank], [peer for peer in range(self.size) if peer != self.rank]
        heard = [mine if peer == self.rank else torch.empty_like(mine) for peer in range(self.size)]
        works = self._post([(heard[peer], peer) for peer in others], [(ranges[peer], peer) for peer in others])

        def add() -> None:
            sum_into(dst.view(-1), heard)
            for peer in others:
                self._received[self.members[peer]] += heard[peer].nbytes

        if not others:
            add()
            return TorchWork(self, None, "")
        return self._start("reduce_scatter", key, Together(works), add)

    def sum_by(
        self,
        src: Tensor,
        dst: Tensor,
        pieces: Sequence[Piece],
        givers: int,
        key: object = "",
        combine: Combine = add_up,
    ) -> TorchWork:
        """dst = the sum of the first `givers` ranks' src, each piece added by its owner. The others only add."""
        first, self._tags = self._tags + 1, self._tags + 2 * len(pieces)
        flat, out, gives = src.reshape(-1), dst.view(-1), self.rank < givers
        owned, rest = [], []
        for number, (owner, start, stop) in enumerate(pieces):
            push, pull = first + 2 * number, first + 2 * number + 1
            if owner == self.rank:
                heard = [flat[start:stop] if g == self.rank else flat.new_empty(stop - start) for g in range(givers)]
                others = [g for g in range(givers) if g != self.rank]
                works = Together([self._hear(heard[g], g, push) for g in others])
                owned.append((works, self._answer(out[start:stop], heard, others, pull, start, combine)))
            elif gives:
                rest.append(self._hear(out[start:stop], owner, pull))
                rest.append(dist.isend(flat[start:stop], self.members[owner], self._group, push))
        return self._start("sum_by", key, Added(owned, rest))

    def _hear(self, into: Tensor, peer: int, tag: int) -> Any:
        self._received[self.members[peer]] += into.nbytes
        return dist.irecv(into, self.members[peer], self._group, tag)

    def _answer(
        self, out: Tensor, heard: Sequence[Tensor], others: Sequence[int], tag: int, start: int, combine: Combine
    ) -> Callable[[], Sequence[Any]]:
        def answer() -> Sequence[Any]:
            combine(out, heard, start)
            return [dist.isend(out, self.members[peer], self._group, tag) for peer in others]

        return answer

    def all_gather(self, src: Tensor, dst: Tensor, key: object = "") -> TorchWork:
        if not src.numel():
            return TorchWork(self, None, "")
        rows = list(dst.view(self.size, src.numel()).unbind())
        for peer, member in enumerate(self.members):
            self._received[member] += src.nbytes if peer != self.rank else 0
        work = dist.all_gather(rows, src.reshape(-1).contiguous(), group=self._group, async_op=True)
        return self._start("all_gather", key, work)

    def broadcast(self, tensor: Tensor, root: int = 0, key: object = "") -> TorchWork:
        if not tensor.numel():
            return TorchWork(self, None, "")
        dense = tensor.contiguous().to(self._device())
        if self.rank != root:
            self._received[self.members[root]] += tensor.nbytes
        sent = dist.broadcast(dense, self.members[root], group=self._group, async_op=True)
        work = self._start("broadcast", key, sent)
        return work if dense is tensor else work.then(lambda: tensor.copy_(dense))

    def mix(self, src: Tensor, dst: Tensor, mixing: Mixing, key: object = "") -> TorchWork:
        flat, dense = dst.view(-1), src.reshape(-1).contiguous()
        heard = [(torch.empty_like(dense), peer, weight) for peer, weight in mixing.sources]
        works = self._post([(part, peer) for part, peer, _ in heard], [(dense, peer) for peer in mixing.targets])

        def combine() -> None:
            mix_into(flat, dense, mixing.keep, [(part, weight) for part, _, weight in heard])
            for part, peer, _ in heard:
                self._received[self.members[peer]] += part.nbytes

        if not works:
            combine()
            return TorchWork(self, None, "")
        return self._start("mix", key, Together(works), combine)

    def _post(self, receives: Sequence[Message], sends: Sequence[Message]) -> list[Any]:
        """Start messages. Receives are posted before sends; otherwise gloo's steps have two modes."""
        self._tags += 1
        works = [dist.irecv(part, self.members[peer], self._group, self._tags) for part, peer in receives]
        return works + [dist.isend(part, self.members[peer], self._group, self._tags) for part, peer in sends]

    def window(
        self, numel: int, dtype: torch.dtype, sources: Sequence[Sequence[int]], shows: bool = True
    ) -> ServedBuffers:
        """Memory that sources[r] may write on rank r, through a thread of that rank. Collective."""
        if self.backend != "gloo":
            raise WrongCommand(
                f"a window over {self.backend}",
                why="it has no one-sided calls",
                remedy="CUDA_VISIBLE_DEVICES= to train on CPUs",
            )
        if self.size != dist.get_world_size():
            raise WrongCommand(
                "a window of some ranks", why="it belongs to all of them", remedy="a run without servers"
            )
        if self._windows is None:
            self._windows = WindowService(self)
        return ServedBuffers(self._windows, numel, dtype, sources)

    def count(self, source: int, nbytes: int) -> None:
        """Bytes of a window came from a rank; threads call it."""
        with self._counting:
            self._written[source] += nbytes

    def started(self, what: str, work: Any, after: Callable[[], Any] | None = None) -> TorchWork:
        return TorchWork(self, work, what, after)

    def board(self, length: int) -> GroupBoard:
        """Where rank 0 says what all do next, in a group of its own. Collective."""
        limit = timedelta(seconds=self.deadline)
        # only the members make it: servers of a parameter server are in the job, but do not train
        group = dist.new_group(list(self.members), timeout=limit, backend="gloo", use_local_synchronization=True)
        return GroupBoard(self, group, self.members[0])

    def split(self, groups: Sequence[Sequence[int]]) -> TorchDist:
        """The comm of this rank's group; collective over all ranks."""
        made = [self._group_of(group) for group in groups]
        return next(comm for comm in made if comm is not None)

    def _group_of(self, group: Sequence[int]) -> TorchDist | None:
        """The comm of some ranks, for those who are in it. Collective over all."""
        members = tuple(self.members[peer] for peer in group)
        made = dist.new_group(list(members), timeout=timedelta(seconds=self.deadline), backend=self.backend)
        if self.rank not in group:
            return None
        found = copy.copy(self)
        found.members, found._group, found._owns = members, made, False
        found.rank, found.size = list(group).index(self.rank), len(members)
        found.placement = tuple(self.placement[peer] for peer in group)
        return found

    def crews(self, workers: int) -> list[TorchDist]:
        """For each worker a group of it and all servers, the ranks from `workers` on: mine. Collective."""
        servers = list(range(workers, self.size))
        made = [self._group_of([worker, *servers]) for worker in range(workers)]
        return [group for group in made if group is not None]

    def barrier(self, deadline: float | None = None) -> None:
        self._start("barrier", "", dist.barrier(group=self._group, async_op=True)).wait(deadline)

    def _meet(self, seconds: float) -> None:
        """A barrier of messages: gloo ends a collective at the limit of its group, and a message only at its own."""
        others = [peer for peer in range(self.size) if peer != self.rank]
        works = self._post([(torch.zeros(1), peer) for peer in others], [(torch.zeros(1), peer) for peer in others])
        self._start("barrier", "", Together(works)).wait(seconds)

    def _start(self, verb: str, key: object, work: Any, after: Callable[[], Any] | None = None) -> TorchWork:
        return TorchWork(self, work, f"{verb} of {key}" if str(key) else verb, after)

    def progress(self) -> None:
        """torch.distributed has threads of its own."""

    def received(self) -> tuple[int, ...]:
        """Of all groups of this process together."""
        if self.service is not None:
            return self.service.received()
        return tuple(map(sum, zip(self._received, self._written, strict=True)))

    def get_ready(self) -> None:
        """Nothing is taken on first use."""

    def excuse(self, rank: int) -> str | None:
        """A lost connection raises by itself."""
        return None

    def close(self, failure: str = "") -> None:
        if self._windows is not None:
            self._windows.close(failure)
        if self.service is not None:
            self.service.close(failure, self._meet)
        if self._owns and dist.is_initialized() and not failure:
            dist.destroy_process_group()
            # Its threads end with the last reference. If that were ours, they would meet an interpreter that is
            # being taken down, and abort the process.
            self._group = None


class GlooComm(TorchDist):
    backend = "gloo"
