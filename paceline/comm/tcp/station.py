"""One process of a tcp job: its pump, its listening socket, and the addresses of the other ranks."""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.comm.process import Home
from paceline.comm.rendezvous import TextStore
from paceline.comm.tcp.gate import Gate, enter, prepare
from paceline.comm.tcp.pump import Pump
from paceline.comm.tcp.settings import PLAIN, TcpSettings
from paceline.comm.tcp.wire import CONTROL, DATA, NONCE, WINDOW, Hello
from paceline.errors import PeerLost, WrongCommand

_SIOCGIFADDR = 0x8915
Purpose = tuple[int, int, int, int]  # mesh, purpose, stream, rank


class Station:
    """Knows the addresses of all ranks of a job, and makes authenticated connections to them."""

    def __init__(
        self,
        rank: int,
        size: int,
        store: TextStore,
        deadline: float,
        *,
        address: str,
        token: bytes | None = None,
        generation: int = 0,
        settings: TcpSettings = PLAIN,
        name: str = "tcp",
    ) -> None:
        self.rank, self.size, self.deadline, self.generation, self.settings = rank, size, deadline, generation, settings
        self.home = Home(rank)
        self._waiting: dict[Purpose, socket.socket] = {}
        self.gate: Gate | None = None
        self.closed, self.meshes = False, list[Any]()  # all groups of this generation
        self.parted: set[int] = set()  # ranks that have said goodbye
        self._token = token if token is not None else _agreed_token(rank, store, deadline, name)
        self.pump = Pump(f"tcp of rank {rank}")
        try:
            self.gate = Gate(self.pump, address, self._token, generation, self._welcome, settings.buffer)
            own = {"address": address, "port": self.gate.port, "host": socket.gethostname()[:64], "pid": os.getpid()}
            store.set(f"{name}/{generation}/{rank}", json.dumps(own))
            self._places = [json.loads(store.get(f"{name}/{generation}/{peer}", deadline)) for peer in range(size)]
        except BaseException:
            self.close()
            raise

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
            place = self._places[peer]
            made = enter(place["address"], place["port"], hello, self._token, self.deadline, self.settings.buffer)
        else:
            key = mesh, purpose, stream, peer
            if not self.pump.wait(lambda: key in self._waiting or self.closed, self.deadline) or self.closed:
                raise PeerLost(f"{self.name(peer)} did not connect within {self.deadline:.0f} s", rank=peer)
            made = self._waiting.pop(key)
        prepare(made, self.deadline)
        return made

    def _welcome(self, hello: Hello, connection: socket.socket) -> str | None:
        key = hello.mesh, hello.purpose, hello.stream, hello.rank
        if hello.purpose not in (DATA, CONTROL, WINDOW) or not self.rank < hello.rank < self.size:
            return f"rank {hello.rank} has no business here"
        if key in self._waiting or hello.stream >= self.settings.streams:
            return f"rank {hello.rank} has this connection already"
        self._waiting[key] = connection
        return None

    def close(self) -> None:
        """Close the listening socket and end the pump. Each mesh closes its own connections."""
        if self.closed:
            return
        self.closed = True
        with self.pump.state:
            if self.gate is not None:
                self.gate.close()
            for connection in self._waiting.values():
                connection.close()
            self._waiting.clear()
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
