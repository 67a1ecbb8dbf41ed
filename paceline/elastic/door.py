"""The listening socket of the coordinator, and a connection to it."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Any

from paceline.elastic.frames import Inbox, Message, encode, parse_address
from paceline.errors import PacelineError, WrongCommand


def lock_folder(folder: Path, seconds: float = 5.0) -> int:
    """Lock a folder, so that it has only one coordinator.

    Return the descriptor that holds the lock until the process ends.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    limit = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return number
        except OSError:
            if time.monotonic() > limit:
                os.close(number)
                raise WrongCommand(
                    f"the job in {folder}", why="another coordinator serves it", remedy="another folder for --job"
                ) from None
            time.sleep(0.05)


def open_door(interface: str, address: Path) -> socket.socket:
    """Listen on the port of an earlier coordinator of the job, so that its address stays valid, or on a free port."""
    if address.exists():
        try:
            return socket.create_server((interface, parse_address(address.read_text())[1]), backlog=64)
        except (OSError, PacelineError):
            pass
    return socket.create_server((interface, 0), backlog=64)


def tune(channel: socket.socket) -> None:
    """Send small messages at once, and notice within some seconds that the other end cannot be reached any more."""
    settings = {"TCP_NODELAY": 1, "TCP_USER_TIMEOUT": 5000, "TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}
    for name, value in settings.items():
        if hasattr(socket, name):
            channel.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class Link:
    """One connection. Its member name is empty until the peer has shown the token.

    `pid` is that of a process on this host, else 0; `place` is where the member listens for its peers, if it does.
    """

    def __init__(self, channel: socket.socket, now: float) -> None:
        self.channel, self.inbox, self.since = channel, Inbox(), now
        self.member, self.pid = "", 0
        self.proven = False  # it has shown the token
        self.place: dict[str, Any] | None = None

    def send(self, message: Message) -> None:
        try:
            self.channel.sendall(encode(message))
        except OSError:
            pass  # the loop notices the end of the connection
