"""Messages between members and the coordinator: JSON in frames of limited length. The first frame shows the token.

    frame    length, 4 bytes, little-endian | JSON object of at most 64 KiB
    first    {"kind": "hello", "token": ..., "member": ..., "pid": ...}

A connection whose first frame does not show the token is closed and counted. The announced length of a frame allocates
nothing: bytes are appended as they arrive, and a frame that is too long ends the connection.
"""

from __future__ import annotations

import json
import secrets
import socket
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError, WrongCommand

FINISHED = "finished"  # this file exists when all steps were made
ABSENT = "absent"  # absent-K: rank K has ended and is not started again
LONGEST = 1 << 16  # bytes of one message
_HEAD = 4

Message = dict[str, Any]


class BrokenFrame(PacelineError):
    """The received bytes are no message."""


def encode(message: Message) -> bytes:
    body = json.dumps(message).encode()
    if len(body) > LONGEST:
        raise BrokenFrame(f"a message of {len(body):,} bytes", why=f"at most {LONGEST:,} fit")
    return len(body).to_bytes(_HEAD, "little") + body


class Inbox:
    """Bytes that have arrived on one connection, cut into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, block: bytes) -> list[Message]:
        """Add received bytes and return the messages that are now complete."""
        self._bytes += block
        messages: list[Message] = []
        while len(self._bytes) >= _HEAD:
            length = int.from_bytes(self._bytes[:_HEAD], "little")
            if length > LONGEST:
                raise BrokenFrame(f"a frame of {length:,} bytes", why=f"at most {LONGEST:,} fit")
            if len(self._bytes) < _HEAD + length:
                break
            messages.append(_decode(bytes(self._bytes[_HEAD : _HEAD + length])))
            del self._bytes[: _HEAD + length]
        return messages


def _decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as problem:
        raise BrokenFrame("a frame without JSON", why=str(problem)) from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise BrokenFrame("a frame that is no message", why="a message is an object with a kind")
    return message


def make_token(folder: Path) -> str:
    """Create the job's token in a file that only the user can read. If the file exists, return its token."""
    path = folder / "token"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
    return path.read_text()


def same(shown: object, token: str) -> bool:
    """Return whether a token is right. Comparing takes the same time for every wrong token."""
    return isinstance(shown, str) and secrets.compare_digest(shown.encode(), token.encode())


def parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise WrongCommand(f"address {text.strip()!r}", why="an address is HOST:PORT", remedy="127.0.0.1:29600")
    return host, int(port)


def connect_to(address: str, seconds: float) -> socket.socket:
    """Connect to the coordinator, with TCP_NODELAY because messages are small."""
    link = socket.create_connection(parse_address(address), timeout=seconds)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link
