"""What carries gradients and votes of an elastic job: shared memory of one host, or sockets between hosts.

A transport makes a comm for every generation, and the signs of its members: progress, long work, and the fence.

    shm   signs lie in shared memory that outlives its owners; the fence is a word that all members see
    tcp   signs are messages on control connections; the fence is the end of the connections of the generation
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from paceline.comm.connect import settings_of
from paceline.comm.rendezvous import FolderStore
from paceline.comm.shm.memory import host_identity
from paceline.comm.shm.shm import ShmComm
from paceline.comm.tcp.settings import PLAIN, TcpSettings
from paceline.comm.tcp.station import Listener, address_towards
from paceline.comm.tcp.tcp import MemberComm, TcpGroup
from paceline.elastic.client import Client
from paceline.elastic.contact import Contact
from paceline.errors import PeerLost, WrongCommand
from paceline.menu.grammar import parse

CONNECTING = 5.0  # seconds in which a member must accept the connections of a generation
LONGEST = 600.0  # seconds of one wait at most; silence is noticed long before
BEAT = 0.1  # seconds between two signs of progress over a socket
STEP, LONG, DATA = 0, 1, 2  # phases: at work on a step; something long, such as a checkpoint; waiting for its data
BROKEN = "broken"  # the connection has ended: the peer is dead, or has left and says so to the coordinator


class Signs(Protocol):
    """Progress of the members of one generation, by rank."""

    def beat(self) -> None:
        """Show the others that this member makes progress."""

    def declare(self, phase: int) -> None:
        """Show the others what this member does now: STEP, LONG or DATA."""

    def beats(self, rank: int) -> int: ...

    def phase(self, rank: int) -> int: ...

    def stopped(self, rank: int) -> bool:
        """Return whether a signal has stopped the process of a member, as far as it can be seen from here."""

    def fenced(self) -> bool:
        """Return whether the generation has ended."""

    def name(self, rank: int) -> str: ...

    def why_lost(self, rank: int) -> str | None:
        """Return "died" if a member is dead, BROKEN if it may be, another reason if it has left, or None."""


# watch(signs, late) is called while this member waits for the ranks in `late`; it raises PeerLost to end the wait.
# There are no signs while connections are being made.
Watch = Callable[[Signs | None, Sequence[int]], None]


class Transport(Protocol):
    rule: str  # which steps count after a loss, see protocol.py

    def about(self) -> Mapping[str, Any]:
        """Return the facts about this member that the coordinator passes on to the other members."""

    def enter(self, client: Client, watch: Watch, silence: float) -> tuple[Any, Signs]:
        """Make the comm of the client's group with all its members, and their signs. Raises PeerLost.

        `silence` is how long a member that shows nothing is waited for."""

    def fence(self, comm: Any, *, orderly: bool) -> None:
        """End a generation for all its members. Pass `orderly` if all members know that it ends."""

    def close(self) -> None: ...


class FolderMeeting:
    """A store in the job's folder. A wait in it ends when the coordinator has lost a member."""

    def __init__(self, folder: Path, look: Callable[[], None], seconds: float) -> None:
        self._store, self._look, self._seconds = FolderStore(folder), look, seconds

    def set(self, name: str, text: str) -> None:
        self._store.set(name, text)

    def get(self, name: str, seconds: float) -> str:
        seconds = min(seconds, self._seconds)
        limit = time.monotonic() + seconds
        while (text := self._store.look(name)) is None:
            self._look()
            if time.monotonic() > limit:
                raise PeerLost(f"no member announced {name!r} within {seconds:.0f} s", rank=0)
            time.sleep(0.001)
        return text

    def claim(self, name: str, text: str) -> str:
        return self._store.claim(name, text)

    def look(self, name: str) -> str | None:
        return self._store.look(name)


class ShmTransport:
    rule = "shm"

    def __init__(self, folder: Path, segments: Path | None = None) -> None:
        self._folder, self._segments = folder, segments

    def about(self) -> Mapping[str, Any]:
        return {"rule": self.rule, "host": host_identity()}

    def enter(self, client: Client, watch: Watch, silence: float) -> tuple[Any, Signs]:
        group = client.group
        assert group is not None
        comm = ShmComm(
            group.members.index(client.member),
            len(group.members),
            FolderMeeting(self._folder, lambda: watch(None, ()), silence),
            LONGEST,
            self._segments,
            f"workers-{group.generation}",
            watch=watch,
        )
        return comm, comm.counters

    def fence(self, comm: Any, *, orderly: bool) -> None:
        comm.counters.raise_fence()

    def close(self) -> None:
        """Do nothing: the kernel frees the memory with its last user."""


class TcpSigns:
    """Signs over the control connections of a mesh."""

    def __init__(self, comm: TcpGroup) -> None:
        self._mesh, self._phase, self._sent = comm.mesh, STEP, 0.0

    def beat(self) -> None:
        now = time.monotonic()
        if now - self._sent > BEAT:
            self._sent = now
            self._mesh.beat(self._phase)

    def declare(self, phase: int) -> None:
        self._phase = phase
        self._mesh.beat(phase)

    def beats(self, rank: int) -> int:
        return int(self._mesh.beats.get(rank, (0, STEP))[0])

    def phase(self, rank: int) -> int:
        return int(self._mesh.beats.get(rank, (0, STEP))[1])

    def stopped(self, rank: int) -> bool:
        return bool(self._mesh.stopped(rank))

    def fenced(self) -> bool:
        return self._mesh.problem is not None

    def name(self, rank: int) -> str:
        return str(self._mesh.name(rank))

    def why_lost(self, rank: int) -> str | None:
        why = self._mesh.why_lost(rank)
        return BROKEN if why == "died" else why

    def leave(self, why: str) -> None:
        """Do nothing: peers see the connections end."""


class TcpTransport:
    """Listens on one port as long as this member lives; every generation has connections of its own."""

    rule = "tcp"

    def __init__(self, contact: Contact, settings: TcpSettings = PLAIN, interface: str = "") -> None:
        self._listener = Listener(address_towards(contact.host(), interface), contact.token.encode(), settings)

    def about(self) -> Mapping[str, Any]:
        return {"rule": self.rule, "host": host_identity(), "place": dict(self._listener.place)}

    def enter(self, client: Client, watch: Watch, silence: float) -> tuple[Any, Signs]:
        group = client.group
        assert group is not None
        places = [place for place in client.places if place]
        if len(places) < len(group.members):
            raise PeerLost("a member of the group has no address")
        signs: list[TcpSigns] = []

        def look(comm: TcpGroup | None, late: Sequence[int]) -> None:
            if comm is not None and not signs:
                signs.append(TcpSigns(comm))
            watch(signs[0] if signs else None, late)

        comm = MemberComm(
            group.members.index(client.member),
            self._listener,
            places,
            group.generation,
            deadline=LONGEST,
            entering=min(CONNECTING, silence),
            watch=look,
        )
        signs = signs or [TcpSigns(comm)]
        return comm, signs[0]

    def fence(self, comm: Any, *, orderly: bool) -> None:
        comm.end(reset=not orderly)

    def close(self) -> None:
        self._listener.close()


def transport_of(comm: str, contact: Contact, environ: Mapping[str, str], buffer: int = 0) -> Transport:
    """Return the transport for a comm as it is written on the command line; `buffer`: bytes of a socket buffer."""
    if parse(comm).word == "tcp":
        interface = environ.get("PACELINE_INTERFACE") or environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
        return TcpTransport(contact, settings_of(comm, buffer), interface)
    if contact.folder is None:
        raise WrongCommand(f"--comm {comm} in a job on several hosts", why="hosts share no memory", remedy="--comm tcp")
    return ShmTransport(contact.folder)
