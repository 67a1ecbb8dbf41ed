"""The idx file format: a magic number, the sizes, then bytes; plain or gzip-compressed.

    offset 0   0 0 type dimensions         type 8 is unsigned bytes
    offset 4   the size of each dimension  4 bytes each, big-endian
    then       the bytes                   last dimension fastest

Offsets in errors are those of the unpacked bytes. What a header promises is believed only as far as the file on
disk can hold it, and memory is taken as bytes arrive, so that a damaged size cannot take more than is there.
"""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from paceline.errors import DamagedFile, WrongCommand

_BYTES = 8  # the type code of unsigned bytes
_PIECE = 1 << 20
_PACKED = 1032  # deflate packs at most this many bytes into one
_UNPACKING = (EOFError, zlib.error, OSError)


@dataclass(frozen=True)
class IdxFile:
    """A file whose header makes sense and fits the size on disk."""

    path: Path
    sizes: tuple[int, ...]

    @property
    def start(self) -> int:
        return 4 + 4 * len(self.sizes)

    @property
    def nbytes(self) -> int:
        return math.prod(self.sizes)

    def read(self) -> bytearray:
        """Everything after the header: exactly as much as it promises."""
        found = bytearray()
        with _opened(self.path) as stream:
            _take(stream, self.path, self.start, 0)
            while len(found) < self.nbytes:
                wanted = min(_PIECE, self.nbytes - len(found))
                found += _take(stream, self.path, wanted, self.start + len(found))
            if _some(stream, self.path, 1, self.start + self.nbytes):
                raise DamagedFile(self.path, self.start + self.nbytes, why="it goes on after what its header promises")
        return found


def look(path: Path, dimensions: int) -> IdxFile:
    """Read the header alone."""
    with _opened(path) as stream:
        magic = _take(stream, path, 4, 0)
        if magic != bytes([0, 0, _BYTES, dimensions]):
            shape = f"bytes in {dimensions} dimension(s)"
            raise DamagedFile(
                path, 0, why=f"{bytes(magic).hex()} is not how an idx file of {shape} begins", remedy="the right file?"
            )
        raw = _take(stream, path, 4 * dimensions, 4)
    sizes = tuple(int.from_bytes(raw[k : k + 4], "big") for k in range(0, len(raw), 4))
    file = IdxFile(path, sizes)
    _check_room(file)
    return file


def _check_room(file: IdxFile) -> None:
    shown = " x ".join(map(str, file.sizes))
    if not file.nbytes:
        raise DamagedFile(file.path, 4, why=f"its header promises {shown} samples")
    on_disk = file.path.stat().st_size
    most = on_disk * _PACKED if _is_gzip(file.path) else on_disk
    if file.start + file.nbytes > most:
        raise DamagedFile(
            file.path, 4, why=f"its header promises {shown} bytes, and {on_disk} bytes on disk cannot hold them"
        )


def _is_gzip(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(2) == b"\x1f\x8b"
    except OSError as problem:
        raise WrongCommand(f"{path} cannot be read", why=problem.strerror or "") from None


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if _is_gzip(path) else path.open("rb")


def _take(stream: IO[bytes], path: Path, count: int, offset: int) -> bytes:
    """Exactly `count` bytes."""
    found = _some(stream, path, count, offset)
    if len(found) < count:
        raise DamagedFile(path, offset + len(found), why=f"it ends there, and {count - len(found)} more were due")
    return found


def _some(stream: IO[bytes], path: Path, count: int, offset: int) -> bytes:
    try:
        return stream.read(count)
    except _UNPACKING as problem:
        raise DamagedFile(path, offset, why=f"what follows cannot be unpacked ({problem})") from None
