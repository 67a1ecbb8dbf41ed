"""JSON messages of limited size over a socket, after both ends have proved that they know the token of the job.

    server                              client
    {"nonce": s}                  -->
                                  <--   {"nonce": c, "proof": HMAC(token, "client", s, c)}
    {"proof": HMAC(token, "server", s, c)}  -->

A frame is its length in four bytes, then JSON. A length above the limit closes the connection before anything is
allocated; before the proof the limit is a few hundred bytes. The token itself never travels.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
from typing import Any

LONGEST = 1 << 20  # bytes of a frame
SHORTEST = 512  # bytes of a frame before the proof
PROOF_SECONDS = 10.0  # for the whole handshake
_LENGTH = struct.Struct(">I")


class BadFrame(Exception):
    """The bytes are no frame, or a proof is wrong. The connection must be closed."""


def new_token() -> str:
    return secrets.token_hex(32)


def pack(message: Any, most: int = LONGEST) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > most:
        raise BadFrame(f"a message of {len(body):,} bytes; at most {most:,} fit")
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Cuts a stream of bytes into messages."""

    def __init__(self, most: int = SHORTEST) -> None:
        self.most = most
        self._bytes = bytearray()

    def add(self, data: bytes) -> list[Any]:
        """Add received bytes and return the messages that are now complete."""
        self._bytes += data
        messages = []
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > self.most:
                raise BadFrame(f"a frame of {length:,} bytes; at most {self.most:,} are taken")
            if len(self._bytes) < _LENGTH.size + length:
                break
            body = bytes(self._bytes[_LENGTH.size : _LENGTH.size + length])
            del self._bytes[: _LENGTH.size + length]
            messages.append(_parsed(body))
        return messages


def send(line: socket.socket, message: Any) -> None:
    line.sendall(pack(message))


def receive(line: socket.socket, most: int = LONGEST) -> Any:
    """Wait for the next message and return it. Raises BadFrame if the other end has closed the connection."""
    (length,) = _LENGTH.unpack(_exactly(line, _LENGTH.size))
    if length > most:
        raise BadFrame(f"a frame of {length:,} bytes; at most {most:,} are taken")
    return _parsed(_exactly(line, length))


def proof(token: str, side: str, *nonces: str) -> str:
    return hmac.new(token.encode(), "\0".join((side, *nonces)).encode(), hashlib.sha256).hexdigest()


def proves(token: str, side: str, message: Any, server: str, client: str) -> bool:
    """Return whether a message carries the right proof for `side`, "client" or "server"."""
    shown = message.get("proof") if isinstance(message, dict) else None
    return isinstance(shown, str) and hmac.compare_digest(shown.encode(), proof(token, side, server, client).encode())


def introduce(line: socket.socket, token: str) -> None:
    """Do the client's part of the handshake. Raises BadFrame if the server does not know the token."""
    line.settimeout(PROOF_SECONDS)
    mine, first = secrets.token_hex(16), receive(line, SHORTEST)
    theirs = first.get("nonce") if isinstance(first, dict) else None
    if not isinstance(theirs, str):
        raise BadFrame("no nonce")
    send(line, {"nonce": mine, "proof": proof(token, "client", theirs, mine)})
    if not proves(token, "server", receive(line, SHORTEST), theirs, mine):
        raise BadFrame("the server does not know the token of this job")


def welcome(line: socket.socket, token: str) -> None:
    """Do the server's part of the handshake. Raises BadFrame if the client does not know the token."""
    line.settimeout(PROOF_SECONDS)
    mine = secrets.token_hex(16)
    send(line, {"nonce": mine})
    message = receive(line, SHORTEST)
    theirs = message.get("nonce") if isinstance(message, dict) else None
    if not isinstance(theirs, str) or not proves(token, "client", message, mine, theirs):
        raise BadFrame("it does not know the token")
    send(line, {"proof": proof(token, "server", mine, theirs)})


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as problem:
        raise BadFrame(f"not JSON: {problem}") from None


def _exactly(line: socket.socket, nbytes: int) -> bytes:
    data = bytearray()
    while len(data) < nbytes:
        part = line.recv(min(1 << 16, nbytes - len(data)))
        if not part:
            raise BadFrame("the other end closed the connection")
        data += part
    return bytes(data)
