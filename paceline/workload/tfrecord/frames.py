"""The framing of TFRecord files.

    | length: 8 bytes | checksum of length: 4 | data | checksum of data: 4 |      little-endian, one after another

    checksum = ((c >> 15 | c << 17) + 0xa282ead8) mod 2^32      c = crc32c

An error about a damaged record names the file, the record, the offset of the record, and the field. A length is
compared with the bytes that are left in the file before anything is allocated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import IO, Any, Protocol

from paceline.errors import DamagedFile, MissingPackage
from paceline.files.read import open_file

HEAD, CHECK = Struct("<QI"), Struct("<I")
AROUND = HEAD.size + CHECK.size  # bytes of a record besides its data
_DELTA = 0xA282EAD8
_BLOCK = 1 << 23


def crc32c() -> Any:
    """Return the function crc32c(bytes) -> int."""
    try:
        import google_crc32c
    except ImportError:
        raise MissingPackage("TFRecord", package="google-crc32c", extra="data") from None
    return google_crc32c.value


def masked(value: int) -> int:
    return (((value >> 15) | (value << 17)) + _DELTA) & 0xFFFFFFFF


def write(stream: IO[bytes], records: Iterable[bytes]) -> list[int]:
    """Append records; return the offset of each."""
    crc, offsets, offset = crc32c(), [], 0
    for data in records:
        length = len(data).to_bytes(8, "little")
        stream.write(length + CHECK.pack(masked(crc(length))))
        stream.write(data)
        stream.write(CHECK.pack(masked(crc(data))))
        offsets.append(offset)
        offset += len(data) + AROUND
    return offsets


@dataclass(frozen=True)
class Damage:
    """One damaged record.

    `unchecked` bytes after it could not be checked, because the next record's start is not known.
    """

    file: str
    record: int
    offset: int
    field: str
    unchecked: int = 0

    def __str__(self) -> str:
        rest = f"; {self.unchecked:,} bytes after it stayed unchecked" if self.unchecked else ""
        return f"{self.file}: record {self.record} at offset {self.offset}: {self.field}{rest}"


class ByteStream(Protocol):
    """Bytes that can be read from any place."""

    def seek(self, offset: int, /) -> Any: ...

    def read(self, count: int, /) -> bytes: ...


def scan(path: Path, damages: list[Damage], *, contents: bool = True) -> Iterator[tuple[int, memoryview]]:
    """Yield (offset, data) of every intact record, and append damaged ones to `damages`.

    Without `contents`, check only lengths.
    """
    with open_file(path) as stream:
        yield from scan_stream(path, stream, os.fstat(stream.fileno()).st_size, damages, contents=contents)


def scan_stream(
    path: object, stream: ByteStream, size: int, damages: list[Damage], *, contents: bool = True
) -> Iterator[tuple[int, memoryview]]:
    """Do the same with an open stream of `size` bytes."""
    crc = crc32c()
    offset, number = 0, 0
    window, start = b"", 0  # bytes of the file from `start` on
    while offset < size:
        need = HEAD.size
        if offset + need > start + len(window):
            window, start = _read(stream, offset, min(size - offset, max(need, _BLOCK))), offset
        if len(window) - (offset - start) < need:
            damages.append(Damage(str(path), number, offset, "the file ends inside the length"))
            return
        length, check = HEAD.unpack_from(window, offset - start)
        if masked(crc(window[offset - start : offset - start + 8])) != check:
            field = _blame(masked(crc(window[offset - start : offset - start + 8])), check, "length")
            damages.append(Damage(str(path), number, offset, field, size - offset - need))
            return
        if length > size - offset - AROUND:
            field = f"a length of {length:,} bytes, and the file has {max(0, size - offset - AROUND):,} more"
            damages.append(Damage(str(path), number, offset, field, max(0, size - offset - need)))
            return
        need = length + AROUND
        if contents and offset + need > start + len(window):
            window, start = _read(stream, offset, min(size - offset, max(need, _BLOCK))), offset
            if len(window) < need:
                damages.append(Damage(str(path), number, offset, "the file ends inside the data"))
                return
        if contents:
            body = memoryview(window)[offset - start + HEAD.size : offset - start + HEAD.size + length]
            (check,) = CHECK.unpack_from(window, offset - start + HEAD.size + length)
            seen = masked(crc(bytes(body)))
            if seen == check:
                yield offset, body
            else:
                damages.append(Damage(str(path), number, offset, _blame(seen, check, "data")))
        else:
            yield offset, memoryview(b"")
        offset, number = offset + need, number + 1


def _blame(seen: int, check: int, field: str) -> str:
    """Return the field that was damaged.

    If the checksum differs in one bit, the checksum itself is most likely damaged.
    """
    return f"checksum of {field}" if (seen ^ check).bit_count() == 1 else field


def _read(stream: ByteStream, offset: int, count: int) -> bytes:
    stream.seek(offset)
    return stream.read(count)


def unpack(name: object, number: int, offset: int, frame: bytes | memoryview, crc: Any) -> memoryview:
    """Return the data of one record whose frame was read by its index. Raises if a checksum is wrong."""
    view = memoryview(frame)
    if len(view) >= AROUND:
        length, check = HEAD.unpack_from(view)
        seen = masked(crc(bytes(view[:8])))
        if seen != check:
            raise damaged(name, number, offset, _blame(seen, check, "length"))
        if length == len(view) - AROUND:
            body = view[HEAD.size : -CHECK.size]
            (check,) = CHECK.unpack_from(view, HEAD.size + length)
            seen = masked(crc(bytes(body)))
            if seen != check:
                raise damaged(name, number, offset, _blame(seen, check, "data"))
            return body
    raise damaged(name, number, offset, "a length that is not the one in the index")


def damaged(name: object, number: int, offset: int, field: str) -> DamagedFile:
    return DamagedFile(name, offset, why=f"record {number}, which begins there, has a damaged {field}")
