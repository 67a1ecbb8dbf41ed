"""The bytes of a tcp connection: a handshake, then frames with a header of 24 bytes.

    handshake   connector  -> HELLO: version, purpose, stream, generation, mesh, rank, nonce of the connector
                acceptor   -> nonce of the acceptor, proof that it knows the token
                connector  -> proof that it knows the token
    frame       | kind | - | number | generation | operation | checksum of the call | length |  payload

A proof is an HMAC of the token over everything that both sides have sent, so it cannot be replayed. All parts of a
handshake have a fixed length, and the length of a frame is compared with the expected one before it is used.
"""

from __future__ import annotations

import hmac
import struct
from typing import NamedTuple

VERSION = 1
NONCE = PROOF = 32  # bytes
DATA, CONTROL, WINDOW = 1, 2, 3  # purposes of a connection

_HELLO = struct.Struct("!4sBBHIQI32s")
_HEADER = struct.Struct("!BBHIIIQ")
HELLO_BYTES, HEADER_BYTES = _HELLO.size, _HEADER.size
ANSWER_BYTES = NONCE + PROOF
assert HEADER_BYTES == 24


class Hello(NamedTuple):
    """The first message of a connection: the rank that connects, and the purpose of the connection."""

    purpose: int
    stream: int
    generation: int
    mesh: int
    rank: int
    nonce: bytes

    def pack(self) -> bytes:
        return _HELLO.pack(b"PACE", VERSION, *self)

    @classmethod
    def parse(cls, data: bytes) -> Hello | None:
        """Parse a greeting. Return None if the bytes are not a greeting of this version."""
        magic, version, *fields = _HELLO.unpack(data)
        return cls(*fields) if (magic, version) == (b"PACE", VERSION) else None


class Header(NamedTuple):
    """The header of a frame. `number` identifies a window, a Board or a lost peer; otherwise it is unused."""

    kind: int
    flag: int
    number: int
    generation: int
    operation: int
    checksum: int
    length: int

    def pack(self) -> bytes:
        return _HEADER.pack(*self)

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> Header:
        return cls(*_HEADER.unpack(data))


def proof(token: bytes, side: bytes, hello: bytes, nonce: bytes) -> bytes:
    """Return the proof that one side, b"acceptor" or b"connector", knows the token."""
    return hmac.digest(token, side + hello + nonce, "sha256")


def proves(claim: bytes, token: bytes, side: bytes, hello: bytes, nonce: bytes) -> bool:
    return hmac.compare_digest(claim, proof(token, side, hello, nonce))
