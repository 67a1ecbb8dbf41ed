"""Messages between members and the coordinator: JSON in frames of limited length. The first frame shows the token.

    frame    as in comm/frames.py, with a JSON object that has a kind, of at most 64 KiB before the token was shown
    first    {"kind": "hello", "token": ..., "member": ..., "pid": ...}

A connection whose first frame does not show the token is closed and counted. The announced length of a frame allocates
nothing: bytes are appended as they arrive, and a frame that is too long ends the connection.
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import Any

from paceline.comm.frames import BadFrame, Unpacker, new_token, pack
from paceline.errors import PacelineError, WrongCommand, short

FINISHED = "finished"  # this file exists when all steps were made
ABSENT = "absent"  # absent-K: rank K has ended and is not started again
LONGEST = 1 << 16  # bytes of one message of a stranger
TRUSTED = 1 << 22  # bytes of all others: they may name all members of a group
LARGEST = 1 << 53  # a number in a message
LONGEST_WORD = 200  # characters of a name

Message = dict[str, Any]


class BrokenFrame(PacelineError):
    """The received bytes are not a valid message."""


def encode(message: Message) -> bytes:
    try:
        return pack(message, TRUSTED)
    except BadFrame as problem:
        raise BrokenFrame(str(problem)) from None


class Inbox:
    """Bytes that have arrived on one connection, cut into messages."""

    def __init__(self, most: int = LONGEST) -> None:
        self._unpacker = Unpacker(most)

    def trust(self) -> None:
        """Accept longer messages from now on, because the peer has shown the token."""
        self._unpacker.most = TRUSTED

    def feed(self, block: bytes) -> list[Message]:
        """Add received bytes and return the messages that are now complete."""
        try:
            messages = self._unpacker.add(block)
        except BadFrame as problem:
            raise BrokenFrame(str(problem)) from None
        for message in messages:
            if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
                raise BrokenFrame("a frame that is no message", why="a message is an object with a kind")
        return messages


def count_in(message: Message, name: str) -> int:
    """Return a field of a message that is a count or an id. Raises unless it is an integer from 0 to below LARGEST."""
    value = message.get(name)
    if type(value) is not int or not 0 <= value < LARGEST:
        raise BrokenFrame(f"a message with {name} {short(str(value))}", why="it is a whole number from 0 on")
    return value


def seconds_in(message: Message, name: str) -> float:
    """Return a field of a message that is a time in seconds; 0 if it is absent. Raises for anything but a number."""
    value = message.get(name, 0.0)
    if type(value) not in (int, float) or not 0 <= value < LARGEST:
        raise BrokenFrame(f"a message with {name} {short(str(value))}", why="it is a number of seconds")
    return float(value)


def word_in(message: Message, name: str) -> str:
    """Return a field of a message that is a name or a word. Raises for an empty, a long, or an unprintable text."""
    value = message.get(name)
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= LONGEST_WORD:
        why = f"it has 1 to {LONGEST_WORD} printable characters"
        raise BrokenFrame(f"a message with {name} {short(repr(value))}", why=why)
    return value


def names_in(message: Message, name: str) -> tuple[str, ...]:
    """Return a field of a message that is a list of member names. Raises BrokenFrame if it is something else."""
    values = message.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise BrokenFrame(f"a message without {name}", why="they are names of members")
    return tuple(values)


def counts_in(message: Message, name: str) -> tuple[int, ...]:
    """Return a field of a message that is a list of counts. Raises BrokenFrame if it is something else."""
    values = message.get(name)
    if not isinstance(values, list):
        raise BrokenFrame(f"a message without {name}", why="they are whole numbers from 0 on")
    return tuple(count_in({name: value}, name) for value in values)


def place_in(message: Message) -> dict[str, Any] | None:
    """Return where a member listens for its peers, or None if it does not."""
    place = message.get("place")
    if place is None:
        return None
    known = isinstance(place, dict) and isinstance(place.get("address"), str) and len(place["address"]) < 100
    if not known or count_in(place, "port") > 65535:
        raise BrokenFrame("a member at no place", why="a place has an address and a port")
    kept = {name: str(place.get(name, "?"))[:64] for name in ("host", "pid")}
    return {"address": place["address"], "port": place["port"], **kept}


def make_token(folder: Path) -> str:
    """Create the job's token in a file that only the user can read. If the file exists, return its token."""
    path = folder / "token"
    if not path.exists() or not path.read_text():
        fresh = folder / f".token.{secrets.token_hex(4)}"
        fresh.touch(mode=0o600, exist_ok=False)
        fresh.write_text(new_token())
        fresh.replace(path)  # whoever is killed before leaves no empty token, which everybody knows
    return path.read_text()


def same(shown: object, token: str) -> bool:
    """Return whether a token is right. Comparing takes the same time for every wrong token."""
    if not isinstance(shown, str) or not token:
        return False
    return secrets.compare_digest(shown.encode("utf-8", "replace"), token.encode())


def parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.strip().rpartition(":")
    if not _is_host(host) or not port.isdecimal() or int(port) > 65535:
        raise WrongCommand(f"address {text.strip()!r}", why="an address is HOST:PORT", remedy="127.0.0.1:29600")
    return host, int(port)


def _is_host(text: str) -> bool:
    """Return whether a text may be the name or address of a host. Sockets raise no OSError for other texts."""
    try:
        return bool(text.encode("idna")) and "\0" not in text
    except UnicodeError:
        return False


def connect_to(address: str, seconds: float) -> socket.socket:
    """Connect to the coordinator, with TCP_NODELAY because messages are small."""
    link = socket.create_connection(parse_address(address), timeout=seconds)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link
