"""A member's connection to the coordinator. After a restart of the coordinator it reconnects and repeats its report.

Nothing here blocks a member that trains: an unreachable coordinator costs one attempt to connect per second, in the
background. A member that waits for a group pings the coordinator, and reconnects if no answer comes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.elastic.contact import Contact
from paceline.elastic.door import tune
from paceline.elastic.frames import (
    TRUSTED,
    BrokenFrame,
    Inbox,
    Message,
    count_in,
    counts_in,
    encode,
    names_in,
    parse_address,
)
from paceline.elastic.protocol import Group
from paceline.errors import PacelineError, PeerLost, WrongCommand

PAUSE = 0.05  # seconds between two attempts to connect
CONNECT = 1.0  # seconds for one attempt
NEAR = 0.005  # seconds in which a coordinator of the same host accepts
PING, DEAF = 0.7, 2.0  # seconds of silence before a question, and before a new connection
REFUSED = 15.0  # seconds without a coordinator at a fixed address after which it counts as gone
GOODBYE = 30.0  # seconds to wait for a coordinator that is being restarted, to say that all steps were made


class Client:
    """`contact` says where the coordinator is; `about`, sent with every greeting, says how others reach this member."""

    def __init__(self, contact: Contact | Path, member: str, about: Mapping[str, Any] | None = None) -> None:
        self._contact = Contact.in_folder(contact) if isinstance(contact, Path) else contact
        self.member, self._about = member, dict(about or {})
        self._channel: socket.socket | None = None
        self._open = False  # the connection is made, not only begun
        self._inbox = Inbox(TRUSTED)
        self._report: Message | None = None  # repeated after a reconnection
        self._tried = self._heard = self._asked = 0.0
        self._refused: float | None = None  # since when nobody listens there
        self.group: Group | None = None  # the last answer
        self.places: tuple[Mapping[str, Any] | None, ...] = ()  # where its members listen, by rank
        self.lost: set[str] = set()  # members of the current group that the coordinator has lost
        self.waits_for = ""  # why there is no group yet, as the coordinator explained it
        self.change = False  # a process that could become a member is waiting
        self.border = 0  # tasks are dealt anew after the next step that is a multiple of this; 0: they are not

    def describe(self, data: str) -> None:
        """Say in every greeting which samples this member deals. All members of a job must say the same."""
        self._about.setdefault("data", data)

    # the connection -----------------------------------------------------------------------------

    def _connected(self) -> bool:
        if self._channel is None and time.monotonic() - self._tried >= PAUSE:
            self._begin()
        if self._channel is not None and not self._open:
            self._complete()
        return self._open

    def _begin(self) -> None:
        self._tried = time.monotonic()
        try:
            where = parse_address(self._contact.address)
        except (OSError, PacelineError):
            self._nobody_there()
            return
        channel = socket.socket(socket.AF_INET6 if ":" in where[0] else socket.AF_INET, socket.SOCK_STREAM)
        channel.setblocking(False)
        try:
            code = channel.connect_ex(where)
        except OSError:  # a name that cannot be resolved
            code = errno.EHOSTUNREACH
        if code not in (0, errno.EINPROGRESS):
            channel.close()
            self._nobody_there()
            return
        self._channel = channel
        select.select([], [channel], [], NEAR)

    def _complete(self) -> None:
        channel = self._channel
        assert channel is not None
        if not select.select([], [channel], [], 0)[1]:
            if time.monotonic() - self._tried > CONNECT:
                self._drop()
            return
        if channel.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._drop()
            self._nobody_there()
            return
        channel.settimeout(CONNECT)
        tune(channel)
        self._open, self._inbox, self._heard, self._refused = True, Inbox(TRUSTED), time.monotonic(), None
        greeting = {"kind": "hello", "token": self._contact.token, "member": self.member, "pid": os.getpid()}
        self._send({**greeting, **self._about})
        if self._report is not None:
            self._send(self._report)

    def _nobody_there(self) -> None:
        """End if the job has ended. A coordinator that was killed is started again within seconds."""
        if self._contact.finished and self.group is None:
            raise SystemExit(0)
        now = time.monotonic()
        self._refused = now if self._refused is None else self._refused
        late = self._contact.folder is None and now - self._refused > REFUSED
        if late and self.group is None:
            print("paceline: the job has ended before this worker could join it", file=sys.stderr, flush=True)
            raise SystemExit(0)
        if late or self._contact.gone:
            raise PeerLost(f"{self.member} has lost its job", why="the launcher of the job has ended")

    def _send(self, message: Message) -> None:
        if self._channel is None or not self._open:
            return
        try:
            self._channel.sendall(encode(message))
        except OSError:
            self._drop()

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel, self._open, self.waits_for = None, False, ""

    # messages -----------------------------------------------------------------------------------

    def say(self, message: Message) -> None:
        """Send a message once. It is lost if the coordinator ends before it reads it."""
        if self._connected():
            self._send(message)

    def report(self, message: Message) -> None:
        """Send a report. It is repeated whenever the coordinator restarts, until a group is the answer."""
        self._report, self._heard = message, time.monotonic()
        if self._open:
            self._send(message)
        else:
            self._connected()

    def poll(self, seconds: float = 0.0) -> None:
        """Read messages of the coordinator. Wait at most `seconds` for the first one."""
        if not self._connected() or self._channel is None:
            time.sleep(min(seconds, PAUSE))
            return
        if not select.select([self._channel], [], [], seconds)[0]:
            return
        try:
            block = self._channel.recv(1 << 16)
            for message in self._inbox.feed(block):
                self._hear(message)
        except (OSError, BrokenFrame):
            block = b""
        self._heard = time.monotonic()
        if not block:
            self._drop()

    def _hear(self, message: Message) -> None:
        if message["kind"] == "group":
            group = Group(
                count_in(message, "generation"),
                names_in(message, "members"),
                count_in(message, "steps"),
                names_in(message, "fresh"),
                counts_in(message, "lengths"),
            )
            if self.group is None or group.generation > self.group.generation:
                self.group, self.lost, self.change, self._report = group, set(), False, None
                self.border = 0
                self.places = tuple(message.get("places", ()))
        elif message["kind"] == "waiting":
            self.waits_for = str(message.get("why", ""))
        elif message["kind"] == "refused":
            raise WrongCommand("this worker cannot be a member of the job", why=str(message.get("why", ""))[:400])
        elif message["kind"] == "end":
            raise SystemExit(0)  # the other members have finished all steps, so a newcomer has nothing to do
        elif self.group is not None and message.get("generation") == self.group.generation:
            if message["kind"] == "lost":
                self.lost.add(str(message.get("member")))
            elif message["kind"] == "change":
                self.change = True
            elif message["kind"] == "deal":
                self.border = count_in(message, "every")

    # waiting ------------------------------------------------------------------------------------

    def wait_group(self, after: int, seconds: float) -> Group | None:
        """Wait for a generation later than `after`; return None if there is none in time."""
        limit = time.monotonic() + seconds
        while self.group is None or self.group.generation <= after:
            left = limit - time.monotonic()
            if left <= 0:
                return None
            self._check_hearing()
            self.poll(min(0.2, left))
        return self.group

    def _check_hearing(self) -> None:
        """Ping a silent coordinator. Reconnect if it does not answer, because the link may be cut."""
        now = time.monotonic()
        if not self._open or now - self._heard < PING:
            return
        if now - self._heard > DEAF:
            self._drop()
        elif now - self._asked > PING:
            self._asked = now
            self._send({"kind": "ping"})

    def next_group(self, after: int, seconds: float) -> Group:
        """Wait for a generation later than `after`. Raises PeerLost if there is none in time."""
        group = self.wait_group(after, seconds)
        if group is None:
            raise PeerLost(
                f"{self.member} got no group within {seconds:.0f} s",
                why=self.waits_for or "no coordinator has answered",
                remedy="look at the output of the coordinator; paceline run starts it again when it dies",
            )
        return group

    @property
    def lacks(self) -> str:
        """Return why this member has no group yet."""
        return self.waits_for or ("no answer yet" if self._open else "the coordinator cannot be reached")

    def _reach(self, seconds: float) -> None:
        """Wait until the coordinator is connected, unless it has ended: it would wait for a goodbye that it missed."""
        limit = time.monotonic() + seconds
        with contextlib.suppress(PeerLost):
            while not self._connected() and not self._contact.finished and time.monotonic() < limit:
                time.sleep(PAUSE)

    def close(self, *, finished: bool, parting: bool = False) -> None:
        """Say goodbye: `finished` if all steps were made, `parting` if a signal asked this member to leave."""
        self._report = None
        if finished:
            self._reach(GOODBYE)
        self.say({"kind": "bye", "finished": finished, "parting": parting})
        self._drop()
