"""The idx file format: a magic number, the sizes, then bytes; plain or gzip-compressed.

    offset 0   0 0 type dimensions         type 8 is unsigned bytes
    offset 4   the size of each dimension  4 bytes each, big-endian
    then       the bytes                   last dimension fastest

Offsets in errors are those of the unpacked bytes. The sizes in a header are checked against the size of the file on
disk, and memory is allocated as bytes arrive, so that a damaged size cannot allocate more than the file holds.
"""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from paceline.errors import DamagedFile
from paceline.files.read import open_file

_BYTES = 8  # the type code of unsigned bytes
LARGEST = 2 << 30  # bytes that are kept in memory
_PIECE = 1 << 20
_PACKED = 1032  # the largest compression ratio of deflate
_UNPACKING = (EOFError, zlib.error, OSError)


@dataclass(frozen=True)
class IdxFile:
    """A file whose header is valid and fits the size on disk."""

    path: Path
    sizes: tuple[int, ...]

    @property
    def start(self) -> int:
        return 4 + 4 * len(self.sizes)

    @property
    def nbytes(self) -> int:
        return math.prod(self.sizes)

    def read(self) -> bytearray:
        """Read the bytes after the header, exactly as many as it announces."""
        content = bytearray()
        with _opened(self.path) as stream:
            _take(stream, self.path, self.start, 0)
            while len(content) < self.nbytes:
                wanted = min(_PIECE, self.nbytes - len(content))
                content += _take(stream, self.path, wanted, self.start + len(content))
            if _some(stream, self.path, 1, self.start + self.nbytes):
                raise DamagedFile(
                    self.path, self.start + self.nbytes, why="it goes on after the end that its header announces"
                )
        return content


def look(path: Path, dimensions: int) -> IdxFile:
    """Read the header alone."""
    with _opened(path) as stream:
        magic = _take(stream, path, 4, 0)
        if magic != bytes([0, 0, _BYTES, dimensions]):
            shape = f"bytes in {dimensions} dimension(s)"
            raise DamagedFile(
                path, 0, why=f"{bytes(magic).hex()} is not how an idx file of {shape} begins", remedy="check the file"
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
    if file.nbytes > LARGEST:
        raise DamagedFile(file.path, 4, why=f"its header promises {shown} bytes, and at most {LARGEST:,} are read")


def _is_gzip(path: Path) -> bool:
    with open_file(path) as stream:
        return _some(stream, path, 2, 0) == b"\x1f\x8b"


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if _is_gzip(path) else open_file(path)


def _take(stream: IO[bytes], path: Path, count: int, offset: int) -> bytes:
    """Read exactly `count` bytes."""
    content = _some(stream, path, count, offset)
    if len(content) < count:
        raise DamagedFile(path, offset + len(content), why=f"it ends there, and {count - len(content)} more were due")
    return content


def _some(stream: IO[bytes], path: Path, count: int, offset: int) -> bytes:
    try:
        return stream.read(count)
    except _UNPACKING as problem:
        raise DamagedFile(path, offset, why=f"what follows cannot be unpacked ({problem})") from None
