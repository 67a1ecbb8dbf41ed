"""One collective in progress: it runs a rank's program over its lines and combines the received ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.comm.faults import fault
from paceline.comm.sums import sum_into
from paceline.comm.tcp.program import Incoming, Outgoing, Program
from paceline.comm.tcp.wire import Header
from paceline.comm.transport import Work

if TYPE_CHECKING:
    from paceline.comm.tcp.mesh import Mesh

RING = "all_sum"
SUMS = (RING, "sum_by")  # verbs that carry gradients

# combine(out, parts, start) writes the combination of the ranges that ranks sent; parts are by rank, in rank order
Combine = Callable[[Tensor, Sequence[tuple[int, Tensor]], int], None]


def add_parts(out: Tensor, parts: Sequence[tuple[int, Tensor]], start: int) -> None:
    sum_into(out, [part for _, part in parts])


class Operation:
    """Runs a program from `src`, this rank's input, to `dst`, its result. Both are flat, of one dtype and length.

    A range is sent from `src` until a step has written it, and from `dst` afterwards. `own` is whether this rank's own
    values are one of the parts that are added.
    """

    def __init__(
        self,
        mesh: Mesh,
        program: Program,
        src: Tensor,
        dst: Tensor,
        *,
        call: tuple[str, object, bytes, int],
        combine: Combine = add_parts,
        own: bool = True,
    ) -> None:
        self.verb, self.key, self.note, self.checksum = call
        self.operation, self.counted = -1, True
        self._mesh, self._program, self._combine, self._own = mesh, program, combine, own
        self.src, self.dst, self.itemsize = src, dst, src.itemsize
        self.src_bytes, self.dst_bytes = bytes_of(src), bytes_of(dst)
        self._missing = [stage.receives for stage in program.stages]
        self._parts: dict[int, list[tuple[int, Tensor]]] = {}
        self._whole: dict[int, Incoming] = {}  # steps with all parts, not combined yet
        self._unsent = program.unsent()
        self._left = self._adding = 0
        self.legs: list[Leg] = []
        streams = mesh.streams
        for peer in program.outgoing.keys() | program.incoming.keys():
            outgoing, incoming = program.outgoing.get(peer, ()), program.incoming.get(peer, ())
            for stream in range(min(streams, max(len(outgoing), len(incoming)))):
                self.legs.append(Leg(self, peer, stream, outgoing[stream::streams], incoming[stream::streams]))
        self._left = sum(bool(leg.outgoing) + bool(leg.incoming) for leg in self.legs)

    def __str__(self) -> str:
        return f"{self.verb} of {self.key}" if str(self.key) else self.verb

    @property
    def finished(self) -> bool:
        return not (self._left or self._whole or self._adding)

    def leg_done(self) -> None:
        self._left -= 1

    def may_leave(self, message: Outgoing) -> bool:
        return message.after < 0 or not self._missing[message.after]

    def memory_for(self, message: Incoming) -> Tensor:
        """Return memory to receive a range into: the result itself, or new memory if the range has to be combined."""
        if self._program.stages[message.step].adds:
            return torch.empty(message.stop - message.start, dtype=self.src.dtype)
        return self.dst[message.start : message.stop]

    def arrived(self, peer: int, message: Incoming, part: Tensor) -> None:
        """Take a received range. Combine it once all ranks that send it in this step have sent it."""
        number = message.step
        stage = self._program.stages[number]
        if self.counted:
            self._mesh.count(peer, part.nbytes)
        if not stage.adds:
            self._complete(number, 1)
            return
        parts = self._parts.setdefault(number, [])
        parts.append((peer, part))
        if len(parts) == stage.receives:
            self._whole[number] = message
            self._go_on()

    def left(self, message: Outgoing) -> None:
        """Register that a range was sent. A later step that overwrites it may now proceed."""
        if message.after >= 0:
            self._unsent[message.after] -= 1
            if self._whole:
                self._go_on()

    def _go_on(self) -> None:
        """Combine all steps that have received all their parts, in order.

        A step waits until the previous step that wrote the same range is complete and was sent on.
        """
        for number, message in sorted(self._whole.items()):
            before = self._program.stages[number].before
            if before < 0 or not (self._missing[before] or self._unsent[before]):
                self._adding += 1  # another thread may look whether this operation is finished
                if self._whole.pop(number, None) is not None:
                    self._add(number, message)
                self._adding -= 1

    def _add(self, number: int, message: Incoming) -> None:
        stage, at = self._program.stages[number], slice(message.start, message.stop)
        parts = self._parts.pop(number)
        if self._own:
            parts.append((self._mesh.rank, (self.src if stage.before < 0 else self.dst)[at]))
        self._combine(self.dst[at], sorted(parts, key=lambda known: known[0]), message.start)
        if self.verb == RING:
            fault("after the reduction")
        self._complete(number, stage.receives)

    def _complete(self, number: int, count: int) -> None:
        self._missing[number] -= count
        if not self._missing[number]:
            for leg in self.legs:
                leg.wake()
            if self._whole:
                self._go_on()

    def differs(self, peer: int, header: Header) -> None:
        self._mesh.differs(peer, self, header)

    def waits_for(self) -> int | None:
        """Return a rank that this operation waits for: one that has to send, else one that has to read."""
        for leg in self.legs:
            if leg.receives_left():
                return leg.peer
        return next((leg.peer for leg in self.legs if leg.sends_left()), None)

    def late(self) -> list[int]:
        """Return all ranks that still have to send to this one, or else those that do not read."""
        senders = {leg.peer for leg in self.legs if leg.receives_left()}
        return sorted(senders or {leg.peer for leg in self.legs if leg.sends_left()})


class Leg:
    """The frames of one operation on one line."""

    def __init__(
        self, whole: Operation, peer: int, stream: int, outgoing: Sequence[Outgoing], incoming: Sequence[Incoming]
    ) -> None:
        self._whole, self.peer, self.stream = whole, peer, stream
        self.outgoing, self.incoming = outgoing, incoming
        self._sent = self._heard = 0
        self._part: Tensor | None = None
        self.line: Any = None

    @property
    def operation(self) -> int:
        return self._whole.operation

    @property
    def checksum(self) -> int:
        return self._whole.checksum

    def wake(self) -> None:
        if self.sends_left() and self.line is not None:
            self.line.flush()

    def next_send(self) -> memoryview | None:
        whole, message = self._whole, self.outgoing[self._sent]
        if not whole.may_leave(message):
            return None
        source = whole.src_bytes if message.after < 0 else whole.dst_bytes
        return source[message.start * whole.itemsize : message.stop * whole.itemsize]

    def sent(self) -> None:
        self._sent += 1
        if self._whole.verb in SUMS:
            fault("after a chunk")
        self._whole.left(self.outgoing[self._sent - 1])
        if self._sent == len(self.outgoing):
            self._whole.leg_done()

    def sends_left(self) -> bool:
        return self._sent < len(self.outgoing)

    def expects(self) -> int:
        message = self.incoming[self._heard]
        return (message.stop - message.start) * self._whole.itemsize

    def next_receive(self) -> memoryview:
        self._part = self._whole.memory_for(self.incoming[self._heard])
        return bytes_of(self._part)

    def received(self) -> None:
        message, part = self.incoming[self._heard], self._part
        assert part is not None
        self._heard, self._part = self._heard + 1, None
        self._whole.arrived(self.peer, message, part)
        if self._heard == len(self.incoming):
            self._whole.leg_done()

    def receives_left(self) -> bool:
        return self._heard < len(self.incoming)

    def differs(self, header: Header) -> None:
        self._whole.differs(self.peer, header)


class TcpWork(Work):
    """A handle on an operation. The function `after` runs in the thread that calls wait() or done()."""

    def __init__(self, mesh: Mesh, operation: Operation | None, after: Callable[[], Any] | None = None) -> None:
        self._mesh, self._operation, self._after = mesh, operation, after

    def wait(self, deadline: float | None = None) -> None:
        if self._operation is not None:
            self._mesh.wait_for(self._operation, deadline)
            self._finish()

    def done(self) -> bool:
        if self._operation is None:
            return True
        if not self._operation.finished:
            self._mesh.check()
            return False
        self._finish()
        return True

    def landed(self) -> bool:
        return self._operation is None or self._operation.finished

    def then(self, after: Callable[[], Any]) -> TcpWork:
        """Run `after` when the operation is finished."""
        before = self._after
        self._after = after if before is None else lambda: (before(), after())
        if self._operation is None:
            self._finish()
        return self

    def _finish(self) -> None:
        self._operation, after, self._after = None, self._after, None
        if after is not None:
            after()


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor as bytes."""
    flat: Any = tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    return memoryview(flat.numpy())


Received = Mapping[int, int]
