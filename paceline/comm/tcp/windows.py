"""One-sided windows over separate connections. The pump thread of the owner applies what others write.

    writer   PUT or ADD with the window, the number of the request, and the data   ->  the pump of the owner applies it
             DONE with that number                                                 <-

If a request matches no window, or differs from the window in length, the connection is closed before memory is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.comm.buffers import OwnedBuffers
from paceline.comm.tcp.lines import EMPTY, Mailbox
from paceline.comm.tcp.operation import bytes_of
from paceline.comm.tcp.wire import WINDOW, Header
from paceline.comm.transport import Work
from paceline.errors import PeerLost

if TYPE_CHECKING:
    from paceline.comm.tcp.mesh import Mesh

PUT, ADD, GET, LOCK, UNLOCK, DONE, VALUE = range(1, 8)


class Request(Work):
    """A request that another rank answers. The function `after` runs in the thread that calls wait() or done()."""

    def __init__(self, post: WindowPost, what: str, rank: int, after: Callable[[], Any] | None) -> None:
        self._post, self._what, self._rank, self._after = post, what, rank, after
        self.answered, self.memory = False, memoryview(b"")
        self.kept: Any = None

    def wait(self, deadline: float | None = None) -> None:
        mesh = self._post.mesh
        limit = mesh.station.deadline if deadline is None else deadline
        mesh.wait_until(lambda: self.answered or mesh.problem is not None or mesh.has_left(self._rank), limit)
        if not self.answered:
            mesh.check()
            raise PeerLost(f"{mesh.name(self._rank)} stopped answering in {self._what}", rank=self._rank)
        self._finish()

    def done(self) -> bool:
        if self.answered:
            self._finish()
        else:
            self._post.mesh.check()
        return self.answered

    def _finish(self) -> None:
        after, self._after, self.kept = self._after, None, None
        if after is not None:
            after()


class WindowPost:
    """The connections of a mesh that carry the requests and answers of windows. Creating it is collective."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.windows, self._made = mesh, dict[int, TcpBuffers](), 0
        self._requests: dict[int, Request] = {}
        self._asked = 0
        self._boxes: dict[int, Mailbox] = {}
        station = mesh.station
        made = station.connect(mesh.ident, WINDOW, mesh.members)
        with station.pump.state:
            for world, (connection,) in made.items():
                peer = mesh.members.index(world)
                self._boxes[peer] = Mailbox(
                    station.pump,
                    connection,
                    station.generation,
                    partial(mesh.broken, peer),
                    partial(self._accept, peer),
                    partial(self._deliver, peer),
                )
            mesh.posts += self._boxes.values()

    def number(self) -> int:
        """Return a number for a new window. It is the same on all ranks."""
        self._made += 1
        return self._made & 0xFFFF

    def ask(
        self,
        what: str,
        verb: int,
        window: int,
        rank: int,
        data: Tensor | None = None,
        after: Any = None,
        into: Any = None,
    ) -> Request:
        """Send a request. The returned work is done when the answer has arrived."""
        request = Request(self, f"{what} rank {rank}", rank, after)
        request.kept, body = data, memoryview(b"") if data is None else bytes_of(data)
        if into is not None:
            request.memory = bytes_of(into)
        with self.mesh.station.pump.state:
            self.mesh.check()
            self._asked = (self._asked + 1) & 0xFFFFFFFF
            if verb == UNLOCK:
                request.answered = True
            else:
                self._requests[self._asked] = request
            self._send(rank, verb, window, self._asked, body)
        return request

    def _send(self, rank: int, kind: int, window: int, number: int, body: memoryview = EMPTY) -> None:
        header = Header(kind, 0, window, self.mesh.station.generation, number, 0, len(body))
        self._boxes[rank].post(header, body)

    # under the lock of the pump ---------------------------------------------------------------------------

    def _accept(self, peer: int, header: Header) -> memoryview | None:
        if header.kind == VALUE:
            request = self._requests.get(header.operation)
            return None if request is None else request.memory
        window = self.windows.get(header.number)
        if window is None or header.kind not in (PUT, ADD) or peer not in window.sources:
            return None
        return bytes_of(window.scratch(peer))

    def _deliver(self, peer: int, header: Header, body: memoryview) -> None:
        kind, number = header.kind, header.operation
        if kind in (DONE, VALUE):
            request = self._requests.pop(number, None)
            if request is not None:
                request.answered = True
            return
        window = self.windows.get(header.number)
        if window is None:
            self._boxes[peer].end(f"asked for window {header.number}, which is not there")
        elif kind in (PUT, ADD):
            window.receive(peer, add=kind == ADD)
            self._send(peer, DONE, header.number, number)
        elif kind == GET:
            self._send(peer, VALUE, header.number, number, bytes_of(window.shown()))
        elif kind == LOCK:
            window.turns.ask(peer, partial(self._send, peer, DONE, header.number, number))
        elif kind == UNLOCK:
            window.turns.leave(peer)

    def settle(self) -> None:
        """Wait until all requests are answered."""
        for request in list(self._requests.values()):
            request.wait()


class TcpBuffers(OwnedBuffers):
    """One window. Creating and freeing it is collective."""

    def __init__(
        self,
        post: WindowPost,
        numel: int,
        dtype: torch.dtype,
        sources: Sequence[Sequence[int]],
        barrier: Callable[[], None],
    ) -> None:
        super().__init__(post.mesh.rank, post.mesh.size, numel, dtype, sources)
        self._post, self._mesh, self._barrier, self._number = post, post.mesh, barrier, post.number()
        post.windows[self._number] = self
        barrier()

    def _check(self) -> None:
        self._mesh.check()

    def receive(self, source: int, *, add: bool) -> None:
        buffer = self._buffers[source]
        buffer.write(buffer.scratch, add=add)
        self._mesh.count(source, buffer.scratch.nbytes)

    def put(self, target: int, tensor: Tensor, weight: float = 1.0) -> Request:
        return self._post.ask("put to", PUT, self._number, target, (tensor.reshape(-1) * weight).to(self._own.dtype))

    def accumulate(self, target: int, tensor: Tensor, weight: float = 1.0) -> Request:
        data = (tensor.reshape(-1) * weight).to(self._own.dtype)
        return self._post.ask("accumulate to", ADD, self._number, target, data)

    def get(self, source: int, weight: float = 1.0) -> Request:
        copy = self.empty()

        def keep() -> None:
            self._buffers[source].write(copy.mul_(weight), add=False)
            self._mesh.count(source, copy.nbytes)

        return self._post.ask("get from", GET, self._number, source, after=keep, into=copy)

    @contextlib.contextmanager
    def mutex(self, rank: int, deadline: float | None = None) -> Iterator[None]:
        if rank == self._rank:
            self._wait_for_turn(self._mesh.station.deadline if deadline is None else deadline)
        else:
            self._post.ask("the mutex of", LOCK, self._number, rank).wait(deadline)
        try:
            yield
        finally:
            if rank == self._rank:
                with self._mesh.station.pump.state:
                    self.turns.leave(rank)
            else:
                self._post.ask("releasing the mutex of", UNLOCK, self._number, rank)

    def free(self) -> None:
        self._post.settle()
        self._barrier()
        self._post.windows.pop(self._number, None)
