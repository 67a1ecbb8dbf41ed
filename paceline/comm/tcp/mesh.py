"""The connections of one group of ranks, and its operations in the order of their calls.

Every pair has data lines and one control connection. Control messages never wait behind data:

    BYE     this rank makes no more calls; the flag says whether it failed, the number names the lost peer, if any
    ABORT   this rank gives up the whole generation
    ASK     carries the sender's note of an operation, because the receiver seems to make a different call
    NOTE    the answer to ASK: the note of the same operation on the other rank
    WORD    carries a number of a Board
    BEAT    this rank makes progress; the flag is the phase that it has declared (elastic jobs)
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable
from functools import partial

from paceline.comm.notes import CLOSED, NOTES, call_text, mismatch
from paceline.comm.notes import LENGTH as NOTE_BYTES
from paceline.comm.shm.queue import ENDING, LEFT, PARTING
from paceline.comm.tcp.lines import Line, Mailbox
from paceline.comm.tcp.operation import Operation
from paceline.comm.tcp.station import Station
from paceline.comm.tcp.wire import CONTROL, DATA, Header
from paceline.errors import CallMismatch, PacelineError, PeerLost

BYE, ABORT, ASK, NOTE, WORD, BEAT = 1, 2, 3, 4, 5, 6
_LENGTHS = {BYE: 0, ABORT: 0, ASK: NOTE_BYTES, NOTE: NOTE_BYTES, WORD: 8, BEAT: 0}
HAS_FAILED, CAUSE_FAILED = 1, 2  # flags of a goodbye: this rank, or the peer that ended it, has failed
ANSWER = 2.0  # seconds in which a rank explains a call that differs


class Mesh:
    """The connections among `members`, which are ranks of the station. `rank` and peers are positions among them."""

    def __init__(self, station: Station, ident: int, members: tuple[int, ...], counts: list[int]) -> None:
        self.station, self.ident, self.members = station, ident, members
        self.rank, self.size, self.streams = members.index(station.rank), len(members), station.settings.streams
        self._pump, self._counts = station.pump, counts
        self._number = 0
        self._notes: dict[int, bytes] = {}
        self.problem: PacelineError | None = None
        self._parted: dict[int, int] = {}  # peers that make no more calls, and how many they made
        self._failed: set[int] = set()
        self._causes: dict[int, int] = {}  # peers that left because they lost another peer -> that peer
        self.words: dict[int, deque[int]] = {}
        self.beats: dict[
            int, tuple[int, int]
        ] = {}  # signs of progress of each peer, and the phase that it has declared
        self.posts: list[Mailbox] = []  # connections of windows
        station.meshes.append(self)
        control = station.connect(ident, CONTROL, members)
        data = station.connect(ident, DATA, members, self.streams)
        self._control: dict[int, Mailbox] = {}
        self.lines: dict[int, list[Line]] = {}
        generation = station.generation
        with self._pump.state:
            for world, (connection,) in control.items():
                peer = members.index(world)
                broken = partial(self.broken, peer)
                self._control[peer] = Mailbox(
                    self._pump, connection, generation, broken, _memory, partial(self._heard, peer)
                )
            for world, connections in data.items():
                peer = members.index(world)
                broken = partial(self.broken, peer)
                self.lines[peer] = [Line(self._pump, one, generation, broken) for one in connections]

    def name(self, peer: int) -> str:
        return self.station.name(self.members[peer])

    def stopped(self, peer: int) -> bool:
        """Return whether a peer is a process of this host that a signal has stopped."""
        return self.station.stopped(self.members[peer])

    def count(self, peer: int, nbytes: int) -> None:
        self._counts[self.members[peer]] += nbytes

    # operations -----------------------------------------------------------------------------------------

    def submit(self, operation: Operation) -> None:
        self.station.home.check()
        with self._pump.state:
            self.check()
            operation.operation = self._number & 0xFFFFFFFF
            self._number += 1
            self._notes[operation.operation] = operation.note
            self._notes.pop((operation.operation - NOTES) & 0xFFFFFFFF, None)
            lines = []
            for leg in operation.legs:
                leg.line = self.lines[leg.peer][leg.stream]
                if leg.outgoing:
                    leg.line.send(leg)
                    lines.append(leg.line)
                if leg.incoming:
                    leg.line.receive(leg)
            for line in lines:
                line.flush()

    def wait_for(self, operation: Operation, deadline: float | None) -> None:
        limit, began = self.station.deadline if deadline is None else deadline, time.monotonic()
        self.station.wait(lambda: operation.finished or self._hopeless(operation), limit, operation.late)
        if operation.finished:
            return
        self.check()
        peer = operation.waits_for()
        if peer is not None and peer in self._parted:
            problem = self._left(peer, operation)
            if peer in self._failed:
                self.problem = self.problem or problem  # the goodbye of this rank names the cause
            raise problem
        waited = time.monotonic() - began
        raise PeerLost(
            f"{'a rank' if peer is None else self.name(peer)} stopped answering in {operation} after {waited:.1f} s",
            rank=None if peer is None else peer,
            remedy="look at that rank's output; if a step takes longer, set --deadline SECONDS",
        )

    def _hopeless(self, operation: Operation) -> bool:
        """Return whether an operation can never finish, because it waits for a peer that has left.

        That peer never made the call, has failed, or has closed a line before it sent all data.
        """
        if self.problem is not None or not self._parted:
            return self.problem is not None
        peer = operation.waits_for()
        if peer is None or peer not in self._parted:
            return False
        never = self._parted[peer] <= operation.operation or peer in self._failed
        return never or any(line.ended for line in self.lines[peer])

    def _left(self, peer: int, operation: Operation) -> PacelineError:
        made, cause = self._parted[peer], self._causes.get(peer)
        if cause is not None and cause not in self._failed:
            return PeerLost(f"{self.name(cause)} was lost", why=f"{self.name(peer)} lost it", rank=cause)
        if peer in self._failed:
            peer = peer if cause is None else cause
            return PeerLost(f"{self.name(peer)} failed during {operation}", rank=peer)
        if made <= operation.operation and self.station.watch is None:  # members of an elastic job may just leave
            time.sleep(PARTING)  # Ctrl-C that ended the other rank may be about to arrive here
            mine, theirs = (self.name(self.rank), operation.note), (self.name(peer), call_text(CLOSED, "", ""))
            return mismatch(operation.operation, mine, theirs, peer)
        return PeerLost(f"{self.name(peer)} {LEFT} during {operation}", rank=peer)

    def has_left(self, peer: int) -> bool:
        return peer in self._parted

    def why_lost(self, peer: int) -> str | None:
        """Return why a peer will not answer any more, or None."""
        if peer in self._parted:
            return "failed" if peer in self._failed else LEFT
        lost = isinstance(self.problem, PeerLost) and self.problem.rank == peer
        return "died" if lost else None

    def check(self) -> None:
        """Raise the error that ended this group, if there is one."""
        if self.problem is not None:
            raise self.problem

    # events, under the lock of the pump -----------------------------------------------------------------

    def broken(self, peer: int, why: str) -> None:
        """Handle the end of a connection. If the peer sent no goodbye, it has died, and all operations fail."""
        control = self._control.get(peer)
        if control is not None and not control.ended:
            control.on_readable()  # a goodbye, or an explanation, may wait there
        if peer in self._parted or self.members[peer] in self.station.parted or self.station.closed:
            self._parted.setdefault(peer, self._number)
            return
        if self.problem is None:
            self.problem = PeerLost(f"{self.name(peer)} was lost", why=f"it {why}", rank=peer)

    def _heard(self, peer: int, header: Header, body: memoryview) -> None:
        if header.kind == BYE:
            self._parted[peer] = header.operation
            self.station.parted.add(self.members[peer])
            if header.flag:
                self._failed.add(peer)
            if 0 < header.number <= self.size and header.number - 1 != self.rank:
                self._causes[peer] = header.number - 1
                if header.flag == CAUSE_FAILED:
                    self._failed.add(header.number - 1)
        elif header.kind == ABORT:
            self._parted[peer] = self._number
            self.problem = self.problem or PeerLost(f"{self.name(peer)} gave up this generation", rank=peer)
        elif header.kind == BEAT:
            self.beats[peer] = (self.beats.get(peer, (0, 0))[0] + 1, header.flag)
        elif header.kind == WORD:
            self.words.setdefault(header.number, deque()).append(int.from_bytes(body, "big", signed=True))
        elif header.kind == ASK:
            mine = self._notes.get(header.operation)
            if mine is not None:
                self.post(peer, NOTE, operation=header.operation, body=mine)
                self._differ(peer, header.operation, mine, bytes(body))
        elif header.kind == NOTE:
            self._differ(peer, header.operation, self._notes.get(header.operation, b""), bytes(body))

    def _differ(self, peer: int, number: int, mine: bytes, theirs: bytes) -> None:
        if mine != theirs and self.problem is None:
            self.problem = mismatch(number, (self.name(self.rank), mine), (self.name(peer), theirs), peer)

    def differs(self, peer: int, operation: Operation, header: Header) -> None:
        """Handle a frame that does not belong to this rank's call: ask the peer which call it has made."""
        self.post(peer, ASK, operation=operation.operation, body=operation.note)
        self._pump.later(ANSWER, partial(self._unexplained, peer, operation))

    def _unexplained(self, peer: int, operation: Operation) -> None:
        if self.problem is None and not self.station.closed:
            self.problem = CallMismatch(
                f"{self.name(self.rank)} and {self.name(peer)} make different calls",
                why=f"operation {operation.operation + 1} of {self.name(self.rank)} is {operation}",
                rank=peer,
            )

    def post(
        self, peer: int, kind: int, *, flag: int = 0, number: int = 0, operation: int = 0, body: bytes = b""
    ) -> None:
        header = Header(kind, flag, number, self.station.generation, operation, 0, len(body))
        self._control[peer].post(header, memoryview(body))

    # the end ----------------------------------------------------------------------------------------------

    def part(self, failure: str) -> None:
        """Send a goodbye.

        Without a failure, wait some seconds for the goodbyes of other ranks, so that no data is lost.
        """
        with self._pump.state:
            lost = self.problem.rank if isinstance(self.problem, PeerLost) else None
            flag = CAUSE_FAILED if lost in self._failed else HAS_FAILED if failure else 0
            for peer in self._control:
                self.post(peer, BYE, flag=flag, number=0 if lost is None else lost + 1, operation=self._number)
        if not failure:
            self.wait_until(lambda: len(self._parted) == self.size - 1 or self.problem is not None, ENDING)

    def wait_until(self, done: Callable[[], bool], seconds: float) -> bool:
        return self._pump.wait(done, seconds)

    def abort(self, why: str, *, reset: bool = True) -> None:
        """End all operations at once, on this rank and on the others.

        Without `reset`, connections close gracefully: data that was sent is delivered, and operations that need only
        that data still complete on the other ranks.
        """
        with self._pump.state:
            self.problem = self.problem or PeerLost("this generation was given up", why=why)
            for peer in self._control:
                self.post(peer, ABORT if reset else BYE, operation=self._number)
            self.close(reset=reset)

    def beat(self, phase: int) -> None:
        """Show all peers that this rank makes progress, and the phase that it has declared."""
        with self._pump.state:
            for peer in self._control:
                self.post(peer, BEAT, flag=phase)

    def close(self, *, reset: bool = False) -> None:
        with self._pump.state:
            for lines in self.lines.values():
                for line in lines:
                    line.close(reset=reset)
            for box in (*self._control.values(), *self.posts):
                box.close()


def _memory(header: Header) -> memoryview | None:
    """Return memory for the body of a control message, or None if its kind or length is wrong."""
    length = _LENGTHS.get(header.kind)
    return memoryview(bytearray(length)) if length == header.length else None


def checksum(note: bytes) -> int:
    return zlib.crc32(note)


def mesh_number(parent: int, count: int, members: tuple[int, ...]) -> int:
    """Return a number that identifies a group, from the number of its parent group. All members get the same."""
    text = f"{parent}/{count}/{members}".encode()
    return zlib.crc32(text) << 32 | zlib.crc32(text[::-1])
