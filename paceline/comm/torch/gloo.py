"""A comm over torch.distributed, with gloo for CPU tensors. nccl.py holds what differs for CUDA tensors.

gloo and nccl do not report their traffic. Byte counts are computed for the ring that both use for large sums.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.comm.agreement import Agreement, CallFile
from paceline.comm.notes import CLOSED, GAVE_UP, STEP, SequencePart, call_text, tensor_text
from paceline.comm.process import Home, keep_groups_in_children
from paceline.comm.shm.lockstep import Combine, parts_of
from paceline.comm.shm.queue import DEADLINE, ENDING, PARTING
from paceline.comm.sums import add_up, copyable, mix_into, sum_into
from paceline.comm.torch.groupboard import GroupBoard
from paceline.comm.torch.served import ServedBuffers, WindowService
from paceline.comm.torch.work import ComparedFirst, OwnedPieces, TorchWork, TorchWorks
from paceline.comm.transport import Work
from paceline.errors import CallMismatch, PeerLost, WrongCommand
from paceline.types import Mixing, Piece, Unit, spread

_WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64, torch.bool: torch.int32}
LAST_TAG = 0x7FFFFFFF  # the largest that torch.distributed accepts
Message = tuple[Tensor, int]  # a tensor, and the rank that it goes to or comes from


class TorchDist:
    """The collectives of one process group."""

    shares_results = False
    segment = 0
    names_ranks = False
    service: Any = None  # set in a job with servers, see comm/service.py
    backend = ""
    _agreement: Agreement | None = None  # see compare_calls
    _file: CallFile | None = None

    def __init__(
        self, rank: int, size: int, store: Any = None, deadline: float = DEADLINE, nodes: tuple[int, ...] = ()
    ) -> None:
        self.rank, self.size, self.deadline = rank, size, deadline
        self.placement = nodes or (0,) * size
        self.members = tuple(range(size))
        self._received = [0] * size
        self._tags = 0
        self._spare: list[GroupBoard] = []
        self._pending: deque[ComparedFirst] = deque()
        self._home, self.engines = Home(rank), 0
        self._windows: WindowService | None = None
        self._written, self._counting = [0] * size, threading.Lock()
        self._owns = not dist.is_initialized()
        keep_groups_in_children()
        if self._owns:
            if len(set(self.placement)) == 1:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # loopback unless the user set another interface
            dist.init_process_group(
                self.backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=deadline)
            )
            self._group = dist.group.WORLD
        else:
            self._group = dist.new_group(backend=self.backend, timeout=timedelta(seconds=deadline))

    def compare_calls(self, file: Path | None) -> None:
        """Compare calls with other ranks from now on, and write each to `file` for the launcher. Collective."""
        self._agreement = Agreement(self.rank, self.members, self.deadline)
        if file is not None:
            with contextlib.suppress(FileExistsError):
                self._file = CallFile(file)

    def check_process(self) -> None:
        self._home.check()

    def agree(self, verb: str, length: str = "", key: object = "") -> Work:
        """Start to compare a call with those of the other ranks. Without compare_calls(), return a finished work."""
        self._home.check()
        if self._agreement is None:
            return TorchWork(self, None, "")
        text = call_text(verb, length, key)
        if self._file is not None and verb != STEP:  # a step is announced long before anybody waits for it
            self._file.write(text)
        return self._agreement.start(text)

    def _enter(self, verb: str, tensor: Tensor | None, key: object) -> bytes:
        """Write a call to the launcher's file and return its text."""
        self._home.check()
        self._begin_pending()
        text = call_text(verb, "" if tensor is None else tensor_text(tensor), key)
        if self._file is not None:
            self._file.write(text)
        return text

    def _collective(
        self, verb: str, tensor: Tensor, key: object, begin: Callable[[], Any], shown: object = None
    ) -> TorchWork:
        """Start a collective. If its call still has to be compared, it starts after that comparison."""
        note = key if shown is None else shown
        if self._agreement is None or isinstance(key, (Unit, SequencePart)):
            self._enter(verb, tensor, note)
            return self._start(verb, key, begin())
        self._home.check()
        waiting = ComparedFirst(self.agree(verb, tensor_text(tensor), note), begin, self._begin_pending)
        self._pending.append(waiting)
        return self._start(verb, key, waiting)

    def _begin_pending(self, last: ComparedFirst | None = None, *limit: timedelta) -> None:
        """Start the collectives that wait for their comparison, in the order of calls, up to `last` or all of them."""
        while self._pending and (last is None or not last.begun):
            self._pending[0].begin(*limit)
            self._pending.popleft()

    def _tag(self, text: bytes) -> int:
        """Return the next message tag: a hash of the call and its number, so that only equal calls match."""
        self._tags = (self._tags + 1) & LAST_TAG
        return zlib.crc32(text, self._tags) & LAST_TAG

    def allocate(self, numel: int, dtype: torch.dtype, givers: int | None = None) -> Tensor:
        return torch.zeros(numel, dtype=dtype, device=self._device())

    def allocate_result(self, numel: int, dtype: torch.dtype, givers: int | None = None) -> Tensor:
        return torch.zeros(numel, dtype=dtype, device=self._device())

    def private_view(self, result: Tensor) -> None:
        """Return None, because no other rank uses the memory of a result."""

    def release(self, vector: Tensor) -> None:
        """Do nothing: no other rank refers to the vector."""

    def _device(self) -> torch.device:
        return torch.device("cpu")

    def limit(self, deadline: float | None) -> tuple[timedelta, ...]:
        """Return the time limit to pass to wait() of a torch.distributed work."""
        return (timedelta(seconds=self.deadline if deadline is None else deadline),)

    def all_sum(self, src: Tensor, dst: Tensor, key: object = "") -> TorchWork:
        if not src.numel():
            return TorchWork(self, None, "")
        if src.dtype in _WIDER:
            return self._wide_sum(src, dst, key)
        dst.copy_(src)
        bounds = parts_of(src, self.size)
        mine = bounds[self.rank + 1] - bounds[self.rank]
        for peer in {*range(self.size)} - {self.rank}:
            self._received[self.members[peer]] += (mine + bounds[peer + 1] - bounds[peer]) * src.itemsize
        return self._collective("all_sum", src, key, lambda: dist.all_reduce(dst, group=self._group, async_op=True))

    def _wide_sum(self, src: Tensor, dst: Tensor, key: object) -> TorchWork:
        """Sum a dtype that gloo and nccl cannot add, by converting it to a wider one."""
        wide = src.to(_WIDER[src.dtype])
        total = torch.empty_like(wide)
        return self.all_sum(wide, total, key).then(lambda: dst.copy_(total))

    def reduce_scatter(self, src: Tensor, dst: Tensor, key: object = "") -> TorchWork:
        """Start dst = this rank's range of the sum. It is added in rank order, so bits do not depend on timing."""
        if not src.numel():
            return TorchWork(self, None, "")
        flat, bounds = src.reshape(-1).contiguous(), spread(src.numel(), self.size)
        sizes = [(stop - start) * src.itemsize for start, stop in pairwise(bounds)]
        heard = flat.new_empty(self.size, bounds[self.rank + 1] - bounds[self.rank])
        taken, raw = heard.view(-1).view(torch.uint8), flat.view(torch.uint8)

        def begin() -> Any:  # one collective, because messages of gloo do not report that they are complete
            equal = [sizes[self.rank]] * self.size
            return dist.all_to_all_single(taken, raw, equal, sizes, group=self._group, async_op=True)

        def add() -> None:
            sum_into(dst.view(-1), heard.unbind())
            for peer in {*range(self.size)} - {self.rank}:
                self._received[self.members[peer]] += sizes[self.rank]

        return self._collective("reduce_scatter", src, key, begin).then(add)

    def sum_by(
        self,
        src: Tensor,
        dst: Tensor,
        pieces: Sequence[Piece],
        givers: int,
        key: object = "",
        combine: Combine = add_up,
    ) -> TorchWork:
        """Start to sum src over ranks 0 to givers - 1 into dst. The owner of each piece adds it up.

        Ranks from `givers` on contribute no src; they only own pieces.
        """
        first = self._tag(self._enter("sum_by", src, ""))  # a server does not know the workers' key
        flat, out, gives = src.reshape(-1), dst.view(-1), self.rank < givers
        owned, rest = [], []
        for number, (owner, start, stop) in enumerate(pieces):
            push, pull = ((first + 2 * number + side) & LAST_TAG for side in (0, 1))
            if owner == self.rank:
                heard = [flat[start:stop] if g == self.rank else flat.new_empty(stop - start) for g in range(givers)]
                others = [g for g in range(givers) if g != self.rank]
                works = TorchWorks([self._hear(heard[g], g, push) for g in others])
                owned.append((works, self._answer(out[start:stop], heard, others, pull, start, combine)))
            elif gives:
                rest.append(self._hear(out[start:stop], owner, pull))
                rest.append(dist.isend(flat[start:stop], self.members[owner], self._group, push))
        return self._start("sum_by", key, OwnedPieces(owned, rest))

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
        rows = [copyable(row) for row in dst.view(self.size, src.numel()).unbind()]
        for peer, member in enumerate(self.members):
            self._received[member] += src.nbytes if peer != self.rank else 0
        flat = copyable(src.reshape(-1).contiguous())
        return self._collective(
            "all_gather", src, key, lambda: dist.all_gather(rows, flat, group=self._group, async_op=True)
        )

    def broadcast(self, tensor: Tensor, root: int = 0, key: object = "") -> TorchWork:
        if not tensor.numel():
            return TorchWork(self, None, "")
        dense = tensor.contiguous().to(self._device())
        if self.rank != root:
            self._received[self.members[root]] += tensor.nbytes
        work = self._collective(
            "broadcast",
            tensor,
            key,
            lambda: dist.broadcast(copyable(dense), self.members[root], group=self._group, async_op=True),
            f"{key}, from rank {root}",
        )
        return work if dense is tensor else work.then(lambda: tensor.copy_(dense))

    def mix(self, src: Tensor, dst: Tensor, mixing: Mixing, key: object = "") -> TorchWork:
        flat, dense = dst.view(-1), src.reshape(-1).contiguous()
        heard = [(torch.empty_like(dense), peer, weight) for peer, weight in mixing.sources]
        tag = self._tag(self._enter("mix", src, key))
        works = self._post([(part, peer) for part, peer, _ in heard], [(dense, peer) for peer in mixing.targets], tag)

        def combine() -> None:
            mix_into(flat, dense, mixing.keep, [(part, weight) for part, _, weight in heard])
            for part, peer, _ in heard:
                self._received[self.members[peer]] += part.nbytes

        if not works:
            combine()
            return TorchWork(self, None, "")
        return self._start("mix", key, TorchWorks(works), combine)

    def _post(self, receives: Sequence[Message], sends: Sequence[Message], tag: int) -> list[Any]:
        """Start messages, receives first. In the other order, step times with gloo vary between two levels."""
        works = [dist.irecv(copyable(part), self.members[peer], self._group, tag) for part, peer in receives]
        return works + [dist.isend(copyable(part), self.members[peer], self._group, tag) for part, peer in sends]

    def window(
        self, numel: int, dtype: torch.dtype, sources: Sequence[Sequence[int]], shows: bool = True
    ) -> ServedBuffers:
        """Create memory on every rank r that ranks in sources[r] may write to through a thread of r. Collective."""
        if self.backend != "gloo":
            raise WrongCommand(
                f"a window over {self.backend}",
                why="it has no one-sided calls",
                remedy="CUDA_VISIBLE_DEVICES= to train on CPUs",
            )
        if self.size != dist.get_world_size():
            raise WrongCommand(
                "a window of some ranks only",
                why="it is created by all ranks of the job",
                remedy="a run without servers",
            )
        if self._windows is None:
            self._windows = WindowService(self)
        return ServedBuffers(self._windows, numel, dtype, sources)

    def count(self, source: int, nbytes: int) -> None:
        """Count bytes that a window received from a rank. May be called from several threads."""
        with self._counting:
            self._written[source] += nbytes

    def started(self, what: str, work: Any, after: Callable[[], Any] | None = None) -> TorchWork:
        return TorchWork(self, work, what, after)

    def board(self, length: int) -> GroupBoard:
        """Return a Board on which rank 0 announces what all ranks do next, in a separate process group. Collective.

        A freed board is reused, for two reasons: a group holds threads and connections, and torch would reuse the
        name and the addresses of a destroyed group.
        """
        if self._spare:
            return self._spare.pop()
        limit = timedelta(seconds=self.deadline)
        # only members create it: parameter servers belong to the job but do not train
        group = dist.new_group(list(self.members), timeout=limit, backend="gloo", use_local_synchronization=True)
        return GroupBoard(self, group, self.members[0])

    def keep(self, board: GroupBoard) -> None:
        self._spare.append(board)

    def split(self, groups: Sequence[Sequence[int]]) -> TorchDist:
        """Return the comm of this rank's group. Collective over all ranks."""
        made = [self._group_of(group) for group in groups]
        return next(comm for comm in made if comm is not None)

    def _group_of(self, group: Sequence[int]) -> TorchDist | None:
        """Return the comm of some ranks, or None if this rank is not one of them. Collective over all ranks."""
        members = tuple(self.members[peer] for peer in group)
        made = dist.new_group(list(members), timeout=timedelta(seconds=self.deadline), backend=self.backend)
        if self.rank not in group:
            return None
        comm = copy.copy(self)
        comm.members, comm._group, comm._owns = members, made, False
        comm._agreement, comm._spare, comm._pending = None, [], deque()
        comm.rank, comm.size = list(group).index(self.rank), len(members)
        comm.placement = tuple(self.placement[peer] for peer in group)
        return comm

    def crews(self, workers: int) -> list[TorchDist]:
        """Create a group per worker, with all servers (ranks >= `workers`). Return those of this rank. Collective."""
        servers = list(range(workers, self.size))
        made = [self._group_of([worker, *servers]) for worker in range(workers)]
        return [group for group in made if group is not None]

    def barrier(self, deadline: float | None = None) -> None:
        self._enter("barrier", None, "")
        if self._agreement is not None:  # comparing is a barrier by itself
            return self.agree("barrier").wait(deadline)
        return self._start("barrier", "", dist.barrier(group=self._group, async_op=True)).wait(deadline)

    def _meet(self, seconds: float) -> None:
        """Wait for all ranks with messages. A gloo collective cannot have a longer time limit than its group."""
        tag = self._tag(self._enter("barrier", None, "at the end"))
        hear, tell = ([(torch.zeros(1), peer) for peer in {*range(self.size)} - {self.rank}] for _ in range(2))
        works = self._post(hear, tell, tag)
        self._start("barrier", "", TorchWorks(works)).wait(seconds)

    def _start(self, verb: str, key: object, work: Any, after: Callable[[], Any] | None = None) -> TorchWork:
        return TorchWork(self, work, f"{verb} of {key}" if str(key) else verb, after)

    def progress(self) -> None:
        """Do nothing: torch.distributed makes progress in its own threads."""

    def received(self) -> tuple[int, ...]:
        """Return the bytes received from each rank, summed over all groups of this process."""
        if self.service is not None:
            return self.service.received()
        return tuple(map(sum, zip(self._received, self._written, strict=True)))

    def get_ready(self) -> None:
        """Do nothing: nothing is allocated on first use."""

    def why_lost(self, rank: int) -> str | None:
        """Return None, because an operation on a lost connection raises by itself."""
        return None

    def close(self, failure: str = "", abandoned: bool = False) -> None:
        try:
            if not failure:
                self._agree_to_end(abandoned)
        finally:
            self._close(failure)

    def _close(self, failure: str) -> None:
        self._agreement, self._spare = None, []
        if self._file is not None:
            self._file.close(bool(failure))
            self._file = None
        if self._windows is not None:
            self._windows.close(failure)
        if self.service is not None:
            self.service.close(failure, self._meet)
        if self._owns and dist.is_initialized() and not failure:
            dist.destroy_process_group()
            # A group's threads end with the last reference to it. If that were held here, they would run while
            # the interpreter is being torn down, and abort the process.
            self._group = None

    def _agree_to_end(self, abandoned: bool) -> None:
        """Check for some seconds that the other ranks make no more calls. Raises CallMismatch if one does."""
        try:
            self.agree(GAVE_UP if abandoned else CLOSED).wait(PARTING if abandoned else ENDING)
        except PeerLost:
            pass  # the other ranks are busy or gone; if one makes a call that needs this rank, that call fails
        except CallMismatch as problem:
            if not abandoned and not self._gives_up(problem):
                raise

    def _gives_up(self, problem: CallMismatch) -> bool:
        """Return whether the rank that made one more call leaves soon. Ctrl-C ends ranks at different calls."""
        try:
            self.agree(CLOSED).wait(2 * PARTING)
        except CallMismatch as second:
            return GAVE_UP in str(second) or GAVE_UP in str(problem)
        except PeerLost:
            return GAVE_UP in str(problem)
        return False


class GlooComm(TorchDist):
    backend = "gloo"
