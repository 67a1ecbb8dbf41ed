"""One process of a tcp job: its pump, its listening socket, and the addresses of the other ranks."""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.comm.claim import is_stopped
from paceline.comm.process import Home
from paceline.comm.rendezvous import TextStore
from paceline.comm.tcp.gate import Gate, enter, prepare
from paceline.comm.tcp.pump import Pump
from paceline.comm.tcp.settings import PLAIN, TcpSettings
from paceline.comm.tcp.wire import CONTROL, DATA, NONCE, WINDOW, Hello
from paceline.errors import PeerLost, WrongCommand

_SIOCGIFADDR = 0x8915
LINK = 10.0  # seconds that data of an elastic job may stay unacknowledged
SLICE = 0.02  # seconds between two calls of `watch` while a rank waits
Purpose = tuple[int, int, int, int]  # mesh, purpose, stream, rank
Place = Mapping[str, Any]  # where a rank listens: address, port, host, pid


class Listener:
    """The pump and the listening socket of a process whose groups change. Both stay until close()."""

    def __init__(self, address: str, token: bytes, settings: TcpSettings = PLAIN) -> None:
        self.token, self.settings = token, settings
        self.pump = Pump("tcp of an elastic member")
        try:
            self.gate = Gate(self.pump, address, token, 0, _closed, settings.buffer, keeps_early=True)
        except BaseException:
            self.pump.close()
            raise
        self.place: Place = _place(address, self.gate.port)

    def close(self) -> None:
        with self.pump.state:
            self.gate.close()
        self.pump.close()


def _closed(hello: Hello, connection: socket.socket) -> str | None:
    return f"generation {hello.generation} has ended here"


def _place(address: str, port: int) -> Place:
    return {"address": address, "port": port, "host": socket.gethostname()[:64], "pid": os.getpid()}


class Station:
    """Knows the addresses of all ranks of a job, and makes authenticated connections to them.

    In an elastic job it is the station of one generation: `listener` outlives it, and `places` come from the
    coordinator instead of a store. `watch(late)` is called while this rank waits; it may raise PeerLost.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: TextStore | None,
        deadline: float,
        *,
        address: str = "",
        token: bytes | None = None,
        generation: int = 0,
        settings: TcpSettings = PLAIN,
        name: str = "tcp",
        listener: Listener | None = None,
        places: Sequence[Place] = (),
        entering: float | None = None,
        watch: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        self.rank, self.size, self.deadline, self.generation, self.settings = rank, size, deadline, generation, settings
        self.home = Home(rank)
        self._waiting: dict[Purpose, socket.socket] = {}
        self.gate: Gate | None = None
        self.closed, self.meshes = False, list[Any]()  # all groups of this generation
        self.parted: set[int] = set()  # ranks that have said goodbye
        self._listener, self.watch = listener, watch
        self._entering = deadline if entering is None else entering  # seconds to connect to one peer
        if listener is not None:
            self._token, self.pump, self._places = listener.token, listener.pump, list(places)
            listener.gate.begin(generation, self._welcome)
            return
        assert store is not None
        self._token = token if token is not None else _agreed_token(rank, store, deadline, name)
        self.pump = Pump(f"tcp of rank {rank}")
        try:
            self.gate = Gate(self.pump, address, self._token, generation, self._welcome, settings.buffer)
            store.set(f"{name}/{generation}/{rank}", json.dumps(_place(address, self.gate.port)))
            self._places = [json.loads(store.get(f"{name}/{generation}/{peer}", deadline)) for peer in range(size)]
        except BaseException:
            self.close()
            raise

    def wait(self, done: Callable[[], bool], seconds: float, late: Callable[[], Sequence[int]]) -> bool:
        """Wait until `done()` is true or the time is over. Call `watch` with the late ranks meanwhile."""
        if self.watch is None:
            return self.pump.wait(done, seconds)
        limit = time.monotonic() + seconds
        while not self.pump.wait(done, SLICE):
            self.watch(late())
            if time.monotonic() > limit or self.closed:
                return done()
        return True

    def stopped(self, rank: int) -> bool:
        """Return whether a rank is a process of this host that a signal has stopped."""
        place: Mapping[str, Any] = self._places[rank]
        pid = str(place["pid"])
        return place["host"] == self._places[self.rank]["host"] and pid.isdecimal() and is_stopped(int(pid))

    def name(self, rank: int) -> str:
        place: Mapping[str, Any] = self._places[rank]
        return f"rank {rank} (host {place['host']}, pid {place['pid']})"

    def connect(self, mesh: int, purpose: int, members: Sequence[int], streams: int = 1) -> dict[int, list[Any]]:
        """Return sockets to all other members. This rank connects to lower ranks; higher ranks connect to this one."""
        return {
            peer: [self._one(mesh, purpose, stream, peer) for stream in range(streams)]
            for peer in members
            if peer != self.rank
        }

    def _one(self, mesh: int, purpose: int, stream: int, peer: int) -> socket.socket:
        if peer < self.rank:
            hello = Hello(purpose, stream, self.generation, mesh, self.rank, os.urandom(NONCE))
            made = self._enter(peer, hello)
        else:
            key = mesh, purpose, stream, peer
            there = self.wait(lambda: key in self._waiting or self.closed, self._entering, lambda: [peer])
            if not there or self.closed:
                raise PeerLost(f"{self.name(peer)} did not connect within {self._entering:.0f} s", rank=peer)
            made = self._waiting.pop(key)
        prepare(made, min(self.deadline, LINK) if self._listener is not None else self.deadline)
        return made

    def _enter(self, peer: int, hello: Hello) -> socket.socket:
        place = self._places[peer]
        try:
            return enter(
                str(place["address"]), int(place["port"]), hello, self._token, self._entering, self.settings.buffer
            )
        except PeerLost as problem:
            raise PeerLost(f"{self.name(peer)} was lost", why=str(problem), rank=peer) from None

    def _welcome(self, hello: Hello, connection: socket.socket) -> str | None:
        key = hello.mesh, hello.purpose, hello.stream, hello.rank
        if hello.purpose not in (DATA, CONTROL, WINDOW) or not self.rank < hello.rank < self.size:
            return f"rank {hello.rank} has no business here"
        if key in self._waiting or hello.stream >= self.settings.streams:
            return f"rank {hello.rank} has this connection already"
        self._waiting[key] = connection
        return None

    def close(self) -> None:
        """Close the listening socket and end the pump, unless they stay. Each mesh closes its own connections."""
        if self.closed:
            return
        self.closed = True
        with self.pump.state:
            if self._listener is not None:
                self._listener.gate.begin(self.generation, _closed)
            if self.gate is not None:
                self.gate.close()
            for connection in self._waiting.values():
                connection.close()
            self._waiting.clear()
        if self._listener is None:
            self.pump.close()


def _agreed_token(rank: int, store: TextStore, deadline: float, name: str) -> bytes:
    """Return the token of this job: from the environment, or else one that rank 0 puts into the store."""
    known = os.environ.get("PACELINE_TOKEN")
    if known:
        return known.encode()
    if rank == 0:
        store.set(f"{name}/token", secrets.token_hex(32))
    return store.get(f"{name}/token", deadline).encode()


def own_address(environ: Mapping[str, str], one_host: bool) -> str:
    """Return the address to listen on; never all interfaces at once.

    It is the address of the interface that the environment names. Without one it is loopback if all ranks are on one
    host, else the address from which this host reaches MASTER_ADDR.
    """
    interface = environ.get("PACELINE_INTERFACE") or environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if one_host and (not interface or interface == "lo"):
        return "127.0.0.1"
    if interface and interface != "lo":
        return interface_address(interface)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
        try:
            probe.connect((environ.get("MASTER_ADDR", "10.255.255.255"), 9))
            return str(probe.getsockname()[0])
        except OSError as problem:
            raise WrongCommand(
                "--comm tcp between hosts",
                why=f"this host has no address to listen on: {problem}",
                remedy="--network-interface NAME",
            ) from None


def address_towards(peer: str, interface: str = "") -> str:
    """Return the address of an interface, or else the one from which this host reaches a peer."""
    if interface and interface != "lo":
        return interface_address(interface)
    with socket.socket(socket.AF_INET6 if ":" in peer else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))  # nothing is sent
        except OSError as problem:
            raise WrongCommand(
                f"{peer} cannot be reached from this host", why=str(problem), remedy="--network-interface NAME"
            ) from None
        return str(probe.getsockname()[0])


def interface_address(interface: str) -> str:
    """Return the IPv4 address of a network interface."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface[:15].encode()))
        except OSError as problem:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise WrongCommand(
                f"network interface {interface}", why=f"{problem.strerror}; this host has {names}"
            ) from None
    return socket.inet_ntoa(answer[20:24])
