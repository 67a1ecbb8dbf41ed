"""One-sided windows over torch.distributed: threads of the owner serve requests while its main thread trains.

    writer   header (verb, window, length, number), payload  ->   a thread of the owner: checks, applies
             done                                            <-   answer with that number

Requests and answers have separate process groups, so that they never mix with collectives. If a header does not match
a known window, the service ends before anything is allocated for it.

There is one thread per peer. A single thread would have to receive from any peer, and gloo does not end such a receive
when a peer is lost or when this process ends.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.comm.buffers import LOOK, OwnedBuffers
from paceline.errors import PeerLost

if TYPE_CHECKING:
    from paceline.comm.torch.gloo import TorchDist, TorchWork

PUT, ADD, GET, LOCK, UNLOCK, BYE = range(1, 7)
HEADER, PAYLOAD, NEVER = 1, 2, 3  # tags of requests; answers have their number as tag
NUMBERS = (
    1 << 29
)  # request numbers before they wrap around: torch accepts tags of 31 bits, and an answer needs two tags
FOREVER = timedelta(days=365)  # a thread waits for its next request as long as the job lasts
GRACE = 2.0  # seconds for a thread to end


class Parts:
    """The sends and receives of one request. gloo does not report their completion, so `answered` is called instead."""

    def __init__(self, works: Sequence[Any], answered: Callable[[], bool]) -> None:
        self._works, self._answered = works, answered

    def wait(self, limit: timedelta) -> None:
        for work in self._works:
            work.wait(limit)

    def is_completed(self) -> bool:
        return self._answered()


class WindowService:
    """The windows of one rank and the threads that serve them until every other rank has sent BYE."""

    def __init__(self, comm: TorchDist) -> None:
        self.comm, self.failure, self._numbers, self._made = comm, "", 0, 0
        self.windows: dict[int, ServedBuffers] = {}
        # One request per target and one answer per source at a time; kept because gloo drops a work without references.
        self._pending: dict[int, TorchWork] = {}
        self._answered: dict[int, Any] = {}
        ranks = list(comm.members)
        self.requests = dist.new_group(ranks, timeout=FOREVER, backend="gloo")
        self.answers = dist.new_group(ranks, timeout=timedelta(seconds=comm.deadline), backend="gloo")
        self._threads = [
            threading.Thread(target=self._run, args=(peer,), name=f"windows for rank {peer}", daemon=True)
            for peer in self._peers()
        ]
        for thread in self._threads:
            thread.start()

    def ask(
        self,
        what: str,
        verb: int,
        window: int,
        rank: int,
        payload: Tensor | None = None,
        answer: Tensor | None = None,
        after: Callable[[], Any] | None = None,
    ) -> TorchWork:
        """Send a request once the previous one to this rank is answered. The work completes when the answer is here."""
        self.check()
        if rank in self._pending:
            self._pending[rank].wait()
        self._numbers = self._numbers % NUMBERS + 1
        header = torch.tensor([verb, window, 0 if payload is None else payload.numel(), self._numbers])
        done, works = torch.zeros(1, dtype=torch.int64), []
        if answer is not None:
            works.append(dist.irecv(answer, rank, self.answers, 2 * self._numbers))
        if verb not in (UNLOCK, BYE):
            works.append(dist.irecv(done, rank, self.answers, 2 * self._numbers + 1))
        works.append(dist.isend(header, rank, self.requests, HEADER))
        if payload is not None:
            works.append(dist.isend(payload, rank, self.requests, PAYLOAD))
        kept = header, payload
        parts = Parts(works, lambda: bool(done))
        self._pending[rank] = self.comm.started(what, parts, lambda: after() if after else kept)
        return self._pending[rank]

    def settle(self) -> None:
        """Wait until all requests are answered."""
        for work in self._pending.values():
            work.wait()

    def number(self) -> int:
        """Return a number for a new window. It is the same on all ranks and never reused."""
        self._made += 1
        return self._made

    def check(self) -> None:
        if self.failure:
            raise PeerLost(f"windows of rank {self.comm.rank} are no longer served", why=self.failure)

    def close(self, failure: str) -> None:
        """Serve until every other rank has sent BYE. After a failure, close the connections instead."""
        if not failure and not self.failure:
            for rank in self._peers():
                self.ask(f"goodbye to rank {rank}", BYE, 0, rank)
            self.settle()
            self._stay()
        if failure or self.failure:
            self._hang_up()
        if not failure:
            self.check()

    def _stay(self) -> None:
        """Wait without a deadline until every other rank has sent BYE or a thread has recorded a failure."""
        while not self.failure and any(thread.is_alive() for thread in self._threads):
            for thread in self._threads:
                thread.join(LOOK)

    def _peers(self) -> list[int]:
        return [rank for rank in range(self.comm.size) if rank != self.comm.rank]

    def _hang_up(self) -> None:
        """End the threads. A receive times out on purpose: gloo then closes the whole group and wakes its threads."""
        for peer in self._peers():
            with contextlib.suppress(RuntimeError):
                late: Any = dist.irecv(torch.zeros(1), peer, self.requests, NEVER)
                late.wait(timedelta(milliseconds=1))
        for thread in self._threads:
            thread.join(GRACE)

    # in the threads ------------------------------------------------------------------------------

    def _run(self, peer: int) -> None:
        try:
            self._serve(peer)
        except Exception as problem:  # the connection broke, or a header was invalid; raised at the next call
            why = (str(problem) or type(problem).__name__).splitlines()[0][:200]
            self.failure = self.failure or f"rank {peer}: {why}"

    def _serve(self, peer: int) -> None:
        header = torch.zeros(4, dtype=torch.int64)
        while True:
            dist.recv(header, peer, self.requests, HEADER)
            verb, number, numel, tag = header.tolist()
            if verb == BYE:
                return
            window = self.windows.get(number)
            writes = verb in (PUT, ADD)
            if window is None or verb not in _VERBS or numel != (window.numel if writes else 0):
                raise PeerLost(f"its request matches no window of rank {self.comm.rank}", rank=peer)
            if writes and peer not in window.sources:
                raise PeerLost(f"it may not write to rank {self.comm.rank}", rank=peer)
            _VERBS[verb](self, window, peer, tag)

    def _write(self, window: ServedBuffers, source: int, tag: int, *, add: bool) -> None:
        scratch = window.scratch(source)
        dist.recv(scratch, source, self.requests, PAYLOAD)
        window.receive(source, scratch, add=add)
        self._answer(source, tag)

    def _read(self, window: ServedBuffers, source: int, tag: int) -> None:
        shown = window.shown()
        data = dist.isend(shown, source, self.answers, 2 * tag)
        self._answer(source, tag, (data, shown))

    def _lock(self, window: ServedBuffers, source: int, tag: int) -> None:
        window.turns.ask(source, lambda: self._answer(source, tag))

    def _unlock(self, window: ServedBuffers, source: int, tag: int) -> None:
        window.turns.leave(source)

    def _answer(self, source: int, tag: int, kept: Any = None) -> None:
        done = torch.ones(1, dtype=torch.int64)
        self._answered[source] = kept, done, dist.isend(done, source, self.answers, 2 * tag + 1)


_VERBS: dict[int, Callable[[WindowService, Any, int, int], None]] = {
    PUT: lambda service, *request: service._write(*request, add=False),
    ADD: lambda service, *request: service._write(*request, add=True),
    GET: WindowService._read,
    LOCK: WindowService._lock,
    UNLOCK: WindowService._unlock,
}


class ServedBuffers(OwnedBuffers):
    """One window over torch.distributed. Creating and freeing it is collective."""

    def __init__(
        self, service: WindowService, numel: int, dtype: torch.dtype, sources: Sequence[Sequence[int]]
    ) -> None:
        super().__init__(service.comm.rank, service.comm.size, numel, dtype, sources)
        self._service, self._comm, self._number = service, service.comm, service.number()
        service.windows[self._number] = self
        self._comm.barrier()

    def _check(self) -> None:
        self._service.check()

    def receive(self, source: int, tensor: Tensor, *, add: bool) -> None:
        self._buffers[source].write(tensor, add=add)
        self._comm.count(source, tensor.nbytes)

    def put(self, target: int, tensor: Tensor, weight: float = 1.0) -> TorchWork:
        return self._service.ask(f"put to rank {target}", PUT, self._number, target, tensor.reshape(-1) * weight)

    def accumulate(self, target: int, tensor: Tensor, weight: float = 1.0) -> TorchWork:
        return self._service.ask(f"accumulate to rank {target}", ADD, self._number, target, tensor.reshape(-1) * weight)

    def get(self, source: int, weight: float = 1.0) -> TorchWork:
        copy = self.empty()

        def keep() -> None:
            self._buffers[source].write(copy.mul_(weight), add=False)
            self._comm.count(source, copy.nbytes)

        return self._service.ask(f"get from rank {source}", GET, self._number, source, None, copy, keep)

    @contextlib.contextmanager
    def mutex(self, rank: int, deadline: float | None = None) -> Iterator[None]:
        if rank == self._rank:
            self._wait_for_turn(self._comm.deadline if deadline is None else deadline)
        else:
            self._service.ask(f"the mutex of rank {rank}", LOCK, self._number, rank).wait(deadline)
        try:
            yield
        finally:
            if rank == self._rank:
                self.turns.leave(rank)
            else:
                self._service.ask(f"releasing the mutex of rank {rank}", UNLOCK, self._number, rank).wait(deadline)

    def free(self) -> None:
        self._service.settle()
        self._comm.barrier()
        del self._service.windows[self._number]
