"""The listening socket of a rank. A peer that knows the token may connect; others are refused and logged.

A stranger can only make this process hold one small buffer of fixed length for a few seconds. At most PENDING
handshakes run at once; if there are more, the oldest is refused.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from paceline.comm.tcp.pump import READ, Pump
from paceline.comm.tcp.wire import ANSWER_BYTES, HELLO_BYTES, NONCE, PROOF, Hello, proof, proves
from paceline.errors import PeerLost

PENDING = 64  # handshakes at once
PATIENCE = 5.0  # seconds for a handshake
LOUD = 20  # refusals that are logged one by one; the rest is counted
EARLY = 256  # authenticated connections of later generations that are kept until this process enters them

log = logging.getLogger(__name__)

# welcome(hello, socket) takes an authenticated connection, or returns a reason to refuse it
Welcome = Callable[[Hello, socket.socket], str | None]


class Gate:
    """Accepts connections of one generation of a job. In an elastic job it stays, and `begin` changes the generation.

    With `keeps_early`, connections of later generations are kept: a peer may hear of a new generation first.
    """

    def __init__(
        self,
        pump: Pump,
        address: str,
        token: bytes,
        generation: int,
        welcome: Welcome,
        buffer: int = 0,
        *,
        keeps_early: bool = False,
    ) -> None:
        self._pump, self._token, self._generation, self._welcome = pump, token, generation, welcome
        self._visitors: list[Visitor] = []
        self._keeps_early, self._early = keeps_early, list[tuple[Hello, socket.socket]]()
        self.refused = 0
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        if buffer:
            set_buffers(self._socket, buffer)
        self._socket.bind((address, 0))
        self._socket.listen(128)
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])
        with pump.state:
            pump.add(self, READ)

    def fileno(self) -> int:
        return self._socket.fileno()

    def begin(self, generation: int, welcome: Welcome) -> None:
        """Accept connections of a later generation from now on; those that came before are welcomed at once."""
        with self._pump.state:
            self._generation, self._welcome = generation, welcome
            early, self._early = self._early, []
            for hello, connection in early:
                why = self._receive(hello, connection)
                if why is not None:
                    self.refuse(f"rank {hello.rank}", why)
                    connection.close()

    def _stale(self, generation: int) -> str | None:
        """Return why connections of a generation are refused, or None."""
        if generation == self._generation or (generation > self._generation and self._keeps_early):
            return None
        return f"it is of generation {generation}, this is {self._generation}"

    def _receive(self, hello: Hello, connection: socket.socket) -> str | None:
        """Pass an authenticated connection on, or keep it for a later generation. Return a reason to refuse it."""
        why = self._stale(hello.generation)
        if why is not None or hello.generation == self._generation:
            return why or self._welcome(hello, connection)
        if len(self._early) >= EARLY:
            return "too many connections of later generations"
        self._early.append((hello, connection))
        return None

    def on_readable(self) -> None:
        while True:
            try:
                connection, where = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as problem:  # no descriptors are left, or the visitor has hung up
                log.warning("a connection could not be accepted: %s", problem)
                return
            if len(self._visitors) >= PENDING:
                self._visitors[0].refuse("too many handshakes at once")
            visitor = Visitor(self, connection, f"{where[0]}:{where[1]}")
            self._visitors.append(visitor)
            self._pump.add(visitor, READ)
            self._pump.later(PATIENCE, visitor.expire)

    def on_writable(self) -> None:
        """Do nothing: a listening socket is never written."""

    def leave(self, visitor: Visitor) -> None:
        self._pump.remove(visitor)
        self._visitors.remove(visitor)

    def refuse(self, where: str, why: str) -> None:
        self.refused += 1
        if self.refused <= LOUD:
            log.warning("refused a connection from %s: %s", where, why)
        elif self.refused % 1000 == 0:
            log.warning("refused %d connections so far", self.refused)

    def answer(self, raw: bytes) -> tuple[bytes, bytes] | str:
        """Return the answer to a greeting and the nonce in that answer, or a reason to refuse."""
        hello = Hello.parse(raw)
        if hello is None:
            return "it does not speak this protocol"
        why = self._stale(hello.generation)
        if why is not None:
            return why
        nonce = os.urandom(NONCE)
        return nonce + proof(self._token, b"acceptor", raw, nonce), nonce

    def admit(self, raw: bytes, nonce: bytes, claim: bytes, connection: socket.socket) -> str | None:
        hello = Hello.parse(raw)
        if hello is None or not proves(claim, self._token, b"connector", raw, nonce):
            return "it does not know the token of this job"
        return self._receive(hello, connection)

    def close(self) -> None:
        for visitor in list(self._visitors):
            visitor.drop()
        for _, connection in self._early:
            connection.close()
        self._pump.remove(self)
        self._socket.close()


class Visitor:
    """A connection whose peer has not yet proved that it knows the token."""

    def __init__(self, gate: Gate, connection: socket.socket, where: str) -> None:
        self._gate, self._socket, self._where = gate, connection, where
        connection.setblocking(False)
        self._needs, self._seen = HELLO_BYTES, b""
        self._hello, self._nonce = b"", b""
        self._gone = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def on_readable(self) -> None:
        try:
            data = self._socket.recv(self._needs - len(self._seen))
        except BlockingIOError:
            return
        except OSError as problem:
            self.refuse(str(problem))
            return
        if not data:
            self.refuse("it closed the connection")
            return
        self._seen += data
        if len(self._seen) == self._needs:
            self._prove() if self._hello else self._greet()

    def on_writable(self) -> None:
        """Do nothing: answers are short and are sent at once."""

    def _greet(self) -> None:
        answer = self._gate.answer(self._seen)
        if isinstance(answer, str):
            self.refuse(answer)
            return
        self._hello, self._nonce = self._seen, answer[1]
        self._needs, self._seen = PROOF, b""
        try:
            self._socket.send(answer[0])
        except OSError as problem:
            self.refuse(str(problem))

    def _prove(self) -> None:
        self._leave()
        why = self._gate.admit(self._hello, self._nonce, self._seen, self._socket)
        if why is not None:
            self._gate.refuse(self._where, why)
            self._socket.close()

    def _leave(self) -> None:
        self._gone = True
        self._gate.leave(self)

    def refuse(self, why: str) -> None:
        self._gate.refuse(self._where, why)
        self.drop()

    def drop(self) -> None:
        if not self._gone:
            self._leave()
            self._socket.close()

    def expire(self) -> None:
        if not self._gone:
            self.refuse(f"it proved nothing within {PATIENCE:.0f} s")


def enter(address: str, port: int, hello: Hello, token: bytes, deadline: float, buffer: int = 0) -> socket.socket:
    """Connect to another rank. Both ends prove that they know the token. Raises PeerLost if that fails."""
    limit = time.monotonic() + deadline
    connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if buffer:
            set_buffers(connection, buffer)
        connection.settimeout(deadline)
        connection.connect((address, port))
        raw = hello.pack()
        connection.sendall(raw)
        answer = _read(connection, ANSWER_BYTES, limit)
        nonce, claim = answer[:NONCE], answer[NONCE:]
        if not proves(claim, token, b"acceptor", raw, nonce):
            raise PeerLost(f"{address}:{port} does not know the token of this job")
        connection.sendall(proof(token, b"connector", raw, nonce))
    except OSError as problem:
        connection.close()
        raise PeerLost(f"cannot reach {address}:{port}", why=str(problem)) from None
    except BaseException:
        connection.close()
        raise
    return connection


def _read(connection: socket.socket, nbytes: int, limit: float) -> bytes:
    seen = b""
    while len(seen) < nbytes:
        connection.settimeout(max(0.001, limit - time.monotonic()))
        data = connection.recv(nbytes - len(seen))
        if not data:
            raise ConnectionError("it refused the connection: another token, generation or version")
        seen += data
    return seen


def prepare(connection: socket.socket, deadline: float) -> None:
    """Prepare a connection for the pump: no delay, no blocking, and an error if data stays unacknowledged too long."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    user_timeout: Any = getattr(socket, "TCP_USER_TIMEOUT", None)
    if user_timeout is not None:
        connection.setsockopt(socket.IPPROTO_TCP, user_timeout, min(int(deadline * 1000), 0x7FFFFFFF))


def set_buffers(connection: socket.socket, nbytes: int) -> None:
    """Set the sizes of the socket buffers. This switches off the kernel's automatic tuning."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, nbytes)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, nbytes)
