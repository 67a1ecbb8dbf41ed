"""Connections between two ranks: a `Line` carries data of operations in order, a `Mailbox` carries messages.

On a line, frames are in the order of operations, and frames of one operation are in the order of its program. If the
next operation has not been called yet on this rank, the line is not read; the kernel holds the bytes and slows the
sender down. So no memory is allocated for unexpected data, and the oldest unfinished operation can always proceed.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from paceline.comm.tcp.pump import READ, WRITE, Pump
from paceline.comm.tcp.wire import HEADER_BYTES, Header

LOW = 1 << 16  # bytes; the reader of a larger body is woken only when a large part of it has arrived
LARGEST_MAIL = 1 << 16  # bytes of a control message
EMPTY = memoryview(b"")
log = logging.getLogger(__name__)

Broken = Callable[[str], None]  # broken(why) is called once, when the connection has ended


class Frames(Protocol):
    """The frames of one operation that one line sends and receives, in order."""

    operation: int
    checksum: int

    def next_send(self) -> memoryview | None:
        """Return the body of the next frame if it can be sent now, else None."""

    def sent(self) -> None:
        """Register that the kernel has taken all bytes of next_send()."""

    def sends_left(self) -> bool: ...

    def expects(self) -> int:
        """Return the length of the next frame to receive."""

    def next_receive(self) -> memoryview:
        """Return memory for the body of the next frame."""

    def received(self) -> None:
        """Register that the memory of next_receive() is filled."""

    def receives_left(self) -> bool: ...

    def differs(self, header: Header) -> None:
        """Handle a frame that belongs to another call than expected."""


class Connection:
    """A socket that the pump polls, with a partly sent and a partly received frame."""

    def __init__(self, pump: Pump, connection: socket.socket, generation: int, broken: Broken) -> None:
        self._pump, self._socket, self._generation, self._broken = pump, connection, generation, broken
        self._events = 0
        self._head, self._got, self._body = bytearray(HEADER_BYTES), 0, memoryview(b"")
        self._header: Header | None = None
        self._low, self.ended = 1, False
        with pump.state:
            pump.add(self, 0)

    def fileno(self) -> int:
        return self._socket.fileno()

    def _watch(self, *, read: bool | None = None, write: bool | None = None) -> None:
        events = self._events
        if read is not None:
            events = events | READ if read else events & ~READ
        if write is not None:
            events = events | WRITE if write else events & ~WRITE
        if events != self._events and not self.ended:
            self._events = events
            self._pump.watch(self, events)

    def _wake_at(self, nbytes: int) -> None:
        low = min(max(1, nbytes), 1 << 18) if nbytes > LOW else 1
        if low != self._low:
            self._low = low
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low)

    def on_readable(self) -> None:
        if not self._events & READ:  # paused, so this is an error of the socket
            number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self.end(_lost(os.strerror(number)) if number else "closed the connection")
            return
        try:
            while not self.ended and self._read():
                pass
        except BlockingIOError:
            pass
        except OSError as problem:
            self.end(_lost(problem.strerror or str(problem)))

    def _read(self) -> bool:
        """Read once. Return whether there may be more to read."""
        if self._header is None:
            count = self._socket.recv_into(memoryview(self._head)[self._got :])
            if not count:
                self.end("closed the connection")
                return False
            self._got += count
            if self._got < HEADER_BYTES:
                return True
            self._header, self._got = Header.parse(self._head), 0
            if self._header.generation != self._generation:
                why = f"sent a frame of generation {self._header.generation} in generation {self._generation}"
                log.warning("a connection was closed, because the peer %s", why)
                self.end(why)
                return False
        return self._read_body(self._header)

    def _read_body(self, header: Header) -> bool:
        raise NotImplementedError

    def _fill(self) -> bool:
        """Read into the body of the current frame. Return whether it is complete."""
        while self._got < len(self._body):
            try:
                count = self._socket.recv_into(self._body[self._got :])
            except BlockingIOError:
                self._wake_at(len(self._body) - self._got)
                raise
            if not count:
                self.end("closed the connection")
                return False
            self._got += count
        self._header, self._got, self._body = None, 0, memoryview(b"")
        self._wake_at(1)
        return True

    def on_writable(self) -> None:
        raise NotImplementedError

    def end(self, why: str) -> None:
        """Close the connection and call `broken` of its owner with the reason."""
        if self.ended:
            return
        self.close()
        self._broken(why)

    def close(self, *, reset: bool = False) -> None:
        if self.ended:
            return
        self._pump.remove(self)
        self.ended = True
        if reset:  # reset the connection: the peer notices at once, and the kernel keeps no data
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self._socket.close()


class Line(Connection):
    """A connection that carries the frames of operations, in the order of their calls."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sending: deque[Frames] = deque()
        self._receiving: deque[Frames] = deque()
        self._out: list[memoryview] = []
        with self._pump.state:
            # Read, to notice the end of the connection. Reading pauses while data is for an operation not called yet.
            self._watch(read=True)

    def send(self, frames: Frames) -> None:
        self._sending.append(frames)

    def receive(self, frames: Frames) -> None:
        self._receiving.append(frames)
        self._watch(read=True)

    def on_writable(self) -> None:
        self.flush()

    def flush(self) -> None:
        """Send all frames that can be sent now."""
        if self.ended:
            return
        try:
            while self._load():
                self._unload(self._socket.sendmsg(self._out))
        except BlockingIOError:
            self._watch(write=True)
            return
        except OSError as problem:
            self.end(_lost(problem.strerror or str(problem)))
            return
        self._watch(write=False)

    def _load(self) -> bool:
        """Load the next frame that can be sent. Return whether there is one."""
        while not self._out:
            if not self._sending:
                return False
            frames = self._sending[0]
            if not frames.sends_left():
                self._sending.popleft()
                continue
            body = frames.next_send()
            if body is None:
                return False
            header = Header(0, 0, 0, self._generation, frames.operation, frames.checksum, len(body))
            self._out = [memoryview(header.pack()), body]
        return True

    def _unload(self, count: int) -> None:
        while self._out and count >= len(self._out[0]):
            count -= len(self._out[0])
            self._out.pop(0)
        if self._out:
            self._out[0] = self._out[0][count:]
        else:
            self._sending[0].sent()

    def _read_body(self, header: Header) -> bool:
        while self._receiving and not self._receiving[0].receives_left():
            self._receiving.popleft()
        if not self._receiving:
            self._watch(read=False)
            return False
        frames = self._receiving[0]
        if not len(self._body):
            if (header.operation, header.checksum, header.length) != (
                *(frames.operation, frames.checksum),
                frames.expects(),
            ):
                frames.differs(header)
                self._watch(read=False)
                return False
            self._body = frames.next_receive()
        if not self._fill():
            return False
        frames.received()
        return True


class Mailbox(Connection):
    """A connection for single messages. `accept(header)` returns memory for the body, or None to refuse the message.

    `deliver(header, body)` is called with each complete message, under the lock of the pump.
    """

    def __init__(
        self,
        pump: Pump,
        connection: socket.socket,
        generation: int,
        broken: Broken,
        accept: Callable[[Header], memoryview | None],
        deliver: Callable[[Header, memoryview], None],
    ) -> None:
        super().__init__(pump, connection, generation, broken)
        self._accept, self._deliver, self._dying = accept, deliver, False
        self._out: deque[tuple[memoryview, Callable[[], None] | None]] = deque()
        with pump.state:
            self._watch(read=True)

    def post(self, header: Header, body: memoryview = EMPTY, sent: Callable[[], None] | None = None) -> None:
        """Send a message. `sent` is called when the body may be overwritten. Callers hold the lock of the pump."""
        if self.ended or self._dying:
            return
        self._out.append((memoryview(header.pack()), None if len(body) else sent))
        if len(body):
            self._out.append((body, sent))
        self.on_writable()

    def on_writable(self) -> None:
        try:
            while self._out and not self.ended:
                data, after = self._out[0]
                count = self._socket.send(data)
                if count < len(data):
                    self._out[0] = data[count:], after
                    continue
                self._out.popleft()
                if after is not None:
                    after()
        except BlockingIOError:
            self._watch(write=True)
            return
        except OSError as problem:
            self._dying = True
            self.on_readable()  # what the peer sent before it went
            self.end(_lost(problem.strerror or str(problem)))
            return
        self._watch(write=False)

    def _read_body(self, header: Header) -> bool:
        if header.length and not len(self._body):
            memory = self._accept(header)
            if memory is None or len(memory) != header.length:
                self.end(f"sent a message of {header.length:,} bytes that does not belong here")
                return False
            self._body = memory
        body = self._body
        if not self._fill():
            return False
        self._deliver(header, body)
        return True


def _lost(error: str) -> str:
    return f"lost the connection ({error})"
