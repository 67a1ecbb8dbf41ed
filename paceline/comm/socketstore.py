"""A store of short texts that one process serves over TCP, for ranks on several hosts.

    agent of the first host: StoreServer  <--- frames ---  SocketStore of every rank

    {"set": name, "text": text}      -> {"text": text}
    {"claim": name, "text": text}    -> {"text": text that is there now}
    {"wait": name, "seconds": s}     -> {"text": text, or null after s seconds}

A client must first prove that it knows the token of the job (see frames.py). Names, texts and connections are limited,
so that a stranger can neither read nor fill the store.
"""

from __future__ import annotations

import logging
import secrets
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from paceline.comm.frames import (
    LONGEST,
    PROOF_SECONDS,
    BadFrame,
    Unpacker,
    introduce,
    pack,
    proof,
    proves,
    receive,
    send,
)
from paceline.errors import PeerLost

MOST_TEXTS = 1 << 20
MOST_BYTES = 1 << 28  # bytes of all names and texts
MOST_STRANGERS = 64  # connections without a proof
SLICE = 1.0  # seconds that one request waits at most, so that other threads get their turn

log = logging.getLogger(__name__)


@dataclass
class _Client:
    line: socket.socket
    nonce: str
    since: float
    known: bool = False
    unpacker: Unpacker = field(default_factory=Unpacker)
    waits: tuple[str, float] | None = None  # the name that it waits for, and until when
    out: bytearray = field(default_factory=bytearray)


class StoreServer:
    """Serves a store in a thread until close(). With port 0 the kernel chooses the port."""

    def __init__(self, token: str, address: str = "127.0.0.1", port: int = 0) -> None:
        self._token = token
        self._door = socket.create_server((address, port), backlog=1024)
        self._door.setblocking(False)
        self.address, self.port = self._door.getsockname()[:2]
        self._texts: dict[str, str] = {}
        self._nbytes = 0
        self._clients: dict[socket.socket, _Client] = {}
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="paceline store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._wake.close()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while True:
                for key, events in self._selector.select(self._patience()):
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._door:
                        self._welcome()
                    else:
                        self._hear(self._clients[key.fileobj], events)  # type: ignore[index]
                self._expire()
        finally:
            for client in list(self._clients.values()):
                self._drop(client)
            self._selector.close()
            self._door.close()
            self._woken.close()

    def _patience(self) -> float | None:
        waiting = any(client.waits or not client.known for client in self._clients.values())
        return 0.1 if waiting else None

    def _welcome(self) -> None:
        try:
            line, _ = self._door.accept()
        except OSError:
            return
        if sum(not client.known for client in self._clients.values()) >= MOST_STRANGERS:
            line.close()
            return
        line.setblocking(False)
        client = _Client(line, secrets.token_hex(16), time.monotonic())
        self._clients[line] = client
        self._selector.register(line, selectors.EVENT_READ)
        self._answer(client, {"nonce": client.nonce})

    def _hear(self, client: _Client, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(client)
            if events & selectors.EVENT_READ:
                data = client.line.recv(1 << 16)
                if not data:
                    raise BadFrame("")
                for message in client.unpacker.add(data):
                    self._obey(client, message)
        except BlockingIOError:
            return
        except (OSError, BadFrame, KeyError, TypeError, ValueError, OverflowError, AttributeError) as problem:
            if not client.known and str(problem):
                log.warning("a connection to the store of this job was refused: %s", problem)
            self._drop(client)

    def _obey(self, client: _Client, message: Any) -> None:
        if client.line not in self._clients:
            return
        if not client.known:
            self._examine(client, message)
        elif "set" in message:
            self._answer(client, {"text": self._put(message["set"], message["text"])})
        elif "claim" in message:
            name = message["claim"]
            kept = self._texts.get(name)
            self._answer(client, {"text": self._put(name, message["text"]) if kept is None else kept})
        else:
            client.waits = (str(message["wait"]), time.monotonic() + min(SLICE, float(message["seconds"])))
            self._settle(client)

    def _examine(self, client: _Client, message: Any) -> None:
        theirs = message.get("nonce")
        if not isinstance(theirs, str) or not proves(self._token, "client", message, client.nonce, theirs):
            raise BadFrame("it does not know the token")
        client.known, client.unpacker.most = True, LONGEST
        self._answer(client, {"proof": proof(self._token, "server", client.nonce, theirs)})

    def _put(self, name: str, text: str) -> str:
        if not (isinstance(name, str) and isinstance(text, str)):
            raise BadFrame("names and texts are strings")
        old = self._texts.get(name)
        nbytes = self._nbytes + len(text) - (len(old) if old is not None else -len(name))
        if len(self._texts) >= MOST_TEXTS or nbytes > MOST_BYTES:
            raise BadFrame("the store is full")
        self._texts[name], self._nbytes = text, nbytes
        for client in list(self._clients.values()):
            if client.waits and client.waits[0] == name:
                self._settle(client)
        return text

    def _settle(self, client: _Client) -> None:
        """Answer a waiting client if the text is set or its time is over."""
        assert client.waits is not None
        name, until = client.waits
        text = self._texts.get(name)
        if text is not None or time.monotonic() >= until:
            client.waits = None
            self._answer(client, {"text": text})

    def _expire(self) -> None:
        now = time.monotonic()
        for client in list(self._clients.values()):
            if not client.known and now - client.since > PROOF_SECONDS:
                self._drop(client)
            elif client.waits:
                self._settle(client)

    def _answer(self, client: _Client, message: Any) -> None:
        client.out += pack(message)
        self._flush(client)

    def _flush(self, client: _Client) -> None:
        try:
            while client.out:
                del client.out[: client.line.send(client.out)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.out else 0)
        self._selector.modify(client.line, wanted)

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.line, None):
            self._selector.unregister(client.line)
            client.line.close()


class SocketStore:
    """A store that a StoreServer on another host serves."""

    def __init__(self, address: str, port: int, token: str, seconds: float = 60.0) -> None:
        self._where = f"{address}:{port}"
        self._lock = threading.Lock()
        self._line = self._connect(address, port, token, seconds)

    def _connect(self, address: str, port: int, token: str, seconds: float) -> socket.socket:
        try:
            line = socket.create_connection((address, port), timeout=min(seconds, 30.0))
        except OSError as problem:
            raise PeerLost(
                f"the store of this job at {self._where} cannot be reached",
                why=str(problem),
                remedy="a firewall between hosts must let ports of the job through; paceline doctor --hosts checks it",
            ) from None
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            introduce(line, token)
            line.settimeout(seconds + 2 * SLICE)
        except (OSError, BadFrame) as problem:
            line.close()
            raise PeerLost(f"the store of this job at {self._where} refused this process", why=str(problem)) from None
        return line

    def set(self, name: str, text: str) -> None:
        self._ask({"set": name, "text": text})

    def claim(self, name: str, text: str) -> str:
        return str(self._ask({"claim": name, "text": text}))

    def look(self, name: str) -> str | None:
        return self._ask({"wait": name, "seconds": 0})

    def get(self, name: str, seconds: float) -> str:
        limit = time.monotonic() + seconds
        while True:
            text = self._ask({"wait": name, "seconds": min(SLICE, max(0.0, limit - time.monotonic()))})
            if text is not None:
                return text
            if time.monotonic() >= limit:
                raise PeerLost(f"no rank announced {name!r} within {seconds:.0f} s")

    def close(self) -> None:
        self._line.close()

    def _ask(self, message: Any) -> str | None:
        with self._lock:
            try:
                send(self._line, message)
                answer = receive(self._line)
            except (OSError, BadFrame) as problem:
                raise PeerLost(f"the store of this job at {self._where} does not answer", why=str(problem)) from None
        text = answer.get("text") if isinstance(answer, dict) else None
        return text if text is None else str(text)


def open_store(location: str, token: str, seconds: float) -> SocketStore:
    """Open the store at tcp://ADDRESS:PORT."""
    address, _, port = location.removeprefix("tcp://").rpartition(":")
    if not port.isdecimal() or not address:
        raise PeerLost(f"{location} is no store", why="it is tcp://ADDRESS:PORT")
    return SocketStore(address, int(port), token, seconds)
