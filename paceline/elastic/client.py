"""A member's connection to the coordinator.

After a restart of the coordinator it reconnects and repeats its last report.
"""

from __future__ import annotations

import os
import select
import socket
import time
from pathlib import Path

from paceline.elastic.frames import (
    FINISHED,
    BrokenFrame,
    Inbox,
    Message,
    connect_to,
    count_in,
    encode,
    names_in,
)
from paceline.elastic.protocol import Group
from paceline.errors import PeerLost

PAUSE = 0.05  # seconds between two attempts to connect


class Client:
    """A connection to the coordinator whose address and token are in `folder`."""

    def __init__(self, folder: Path, member: str) -> None:
        self._folder, self.member = folder, member
        self._token = (folder / "token").read_text()
        self._channel: socket.socket | None = None
        self._inbox = Inbox()
        self._report: Message | None = None  # repeated after a reconnection
        self._tried = 0.0
        self.group: Group | None = None  # the last answer
        self.lost: set[str] = set()  # members of the current group that the coordinator has lost
        self.waits_for = ""  # why there is no group yet, as the coordinator explained it
        self.change = False  # a process that could become a member is waiting

    def _connected(self) -> bool:
        if self._channel is not None:
            return True
        if time.monotonic() - self._tried < PAUSE:
            return False
        self._tried = time.monotonic()
        try:
            self._channel = connect_to((self._folder / "address").read_text(), 1.0)
        except (OSError, ValueError):
            if (self._folder / FINISHED).exists() and self.group is None:
                raise SystemExit(0) from None
            if not self._folder.exists():
                raise PeerLost(f"{self.member} has lost its job", why="the launcher of the job has ended") from None
            return False
        self._inbox = Inbox()
        self._send({"kind": "hello", "token": self._token, "member": self.member, "pid": os.getpid()})
        if self._report is not None:
            self._send(self._report)
        return self._channel is not None

    def _send(self, message: Message) -> None:
        if self._channel is None:
            return
        try:
            self._channel.sendall(encode(message))
        except OSError:
            self._drop()

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None

    def say(self, message: Message) -> None:
        """Send a message once. It is lost if the coordinator ends before it reads it."""
        if self._connected():
            self._send(message)

    def report(self, message: Message) -> None:
        """Send a report. It is repeated whenever the coordinator restarts, until a group is the answer."""
        self._report = message
        if self._channel is None:
            self._connected()
        else:
            self._send(message)

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
        if not block:
            self._drop()

    def _hear(self, message: Message) -> None:
        if message["kind"] == "group":
            group = Group(
                count_in(message, "generation"),
                names_in(message, "members"),
                count_in(message, "steps"),
                names_in(message, "fresh"),
            )
            if self.group is None or group.generation > self.group.generation:
                self.group, self.lost, self.change, self._report = group, set(), False, None
        elif message["kind"] == "waiting":
            self.waits_for = str(message.get("why", ""))
        elif message["kind"] == "end":
            raise SystemExit(0)  # the other members have finished all steps, so a newcomer has nothing to do
        elif self.group is not None and message.get("generation") == self.group.generation:
            if message["kind"] == "lost":
                self.lost.add(str(message.get("member")))
            elif message["kind"] == "change":
                self.change = True

    def next_group(self, after: int, seconds: float) -> Group:
        """Wait for a generation later than `after`."""
        limit = time.monotonic() + seconds
        while self.group is None or self.group.generation <= after:
            left = limit - time.monotonic()
            if left <= 0:
                raise PeerLost(
                    f"{self.member} got no group within {seconds:.0f} s",
                    why=self.waits_for or "no coordinator has answered",
                    remedy="look at the output of the coordinator; paceline run starts it again when it dies",
                )
            self.poll(min(0.2, left))
        return self.group

    def close(self, *, finished: bool, parting: bool = False) -> None:
        """Say goodbye: `finished` if all steps were made, `parting` if a signal requested that this member leaves."""
        self._report = None
        self.say({"kind": "bye", "finished": finished, "parting": parting})
        self._drop()
