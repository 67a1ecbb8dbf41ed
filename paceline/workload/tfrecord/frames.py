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
_BLOCK = 1 << 20  # bytes that are read at once: they stay in the cache of a core
_MANY = 16  # records
_KNOWN = 1 << 14  # lengths


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
    """Bytes that can be read from any offset."""

    def seek(self, offset: int, /) -> Any: ...

    def read(self, count: int, /) -> bytes: ...


Intact = list[tuple[int, bytes]]  # offset and data of records


def scan(path: Path, damages: list[Damage], *, contents: bool = True) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, data) of every intact record, and append damaged ones to `damages`.

    Without `contents`, check only lengths.
    """
    for records in scan_blocks(path, damages, contents=contents):
        yield from records


def scan_blocks(path: Path, damages: list[Damage], *, contents: bool = True) -> Iterator[Intact]:
    """Do the same, and yield all records of a part of the file at once."""
    with open_file(path) as stream:
        yield from scan_stream(path, stream, os.fstat(stream.fileno()).st_size, damages, contents=contents)


def scan_stream(
    path: object, stream: ByteStream, size: int, damages: list[Damage], *, contents: bool = True
) -> Iterator[Intact]:
    """Do the same with an open stream of `size` bytes."""
    lengths = Lengths(crc32c())
    start = number = 0
    while start < size:
        block = _Window(start, _read(stream, start, min(size - start, _BLOCK)), size, lengths)
        block.walk(contents)
        if not block.bodies and block.wants:  # one record is longer than a block
            block = _Window(start, _read(stream, start, block.wants), size, lengths)
            block.walk(contents)
        yield block.sound(path, number, damages) if contents else [(start + at, b"") for at in block.starts]
        start, number = start + block.at, number + len(block.starts)
        if block.trouble or not block.starts:
            field, unchecked = block.trouble or ("the file ends inside the data", 0)
            damages.append(Damage(str(path), number, start, field, unchecked))
            return


class _Window:
    """The records that lie wholly in one part of a file."""

    def __init__(self, start: int, window: bytes, size: int, lengths: Lengths) -> None:
        self._start, self._window, self._size, self._lengths = start, window, size, lengths
        self.at = self.wants = 0
        self.starts: list[int] = []
        self.bodies: list[bytes] = []
        self._ends: list[int] = []
        self.trouble: tuple[str, int] | None = None  # damaged field, and bytes that stay unchecked

    def walk(self, contents: bool) -> None:
        """Go from length to length, until the window ends or a length is damaged."""
        window, known, head = self._window, self._lengths.known, HEAD.unpack_from
        starts, bodies, ends, at = self.starts, self.bodies, self._ends, 0
        last, before, tries = len(window) - HEAD.size, -1, 4
        while at <= last:
            length, check = head(window, at)
            if length == before and tries and known.get(length) == check:
                count = self._alike(at, length, check)
                tries -= count < _MANY
                stride = AROUND + length
                starts.extend(range(at, at + count * stride, stride))
                if contents:
                    bodies.extend([window[k : k + length] for k in range(at + HEAD.size, at + count * stride, stride)])
                    ends.extend(range(at + HEAD.size + length, at + count * stride, stride))
                at += count * stride
                before = -1 if count else before
                if count:
                    continue
            before = length
            if known.get(length) != check and (field := self._lengths.check(length, check)):
                self.trouble = field, self._size - self._start - at - HEAD.size
                break
            end = at + HEAD.size + length
            if end > last + HEAD.size - CHECK.size and not self._fits(at, length, contents):
                break
            starts.append(at)
            if contents:
                bodies.append(window[at + HEAD.size : end])
                ends.append(end)
            at = end + CHECK.size
        self.at = at
        if not self.trouble and not self.wants and at < self._size - self._start <= len(window):
            self.trouble = "the file ends inside the length", 0

    def _alike(self, at: int, length: int, check: int) -> int:
        """Return how many whole records from here on begin with the same length and checksum, compared at once."""
        import numpy as np

        stride = AROUND + length
        count = (len(self._window) - at) // stride
        if count < _MANY:
            return 0
        lengths = np.ndarray((count,), "<u8", self._window, at, (stride,))
        checks = np.ndarray((count,), "<u4", self._window, at + 8, (stride,))
        same = (lengths == length) & (checks == check)
        return count if same.all() else int(same.argmin())

    def _fits(self, at: int, length: int, contents: bool) -> bool:
        """Return whether a record that ends after the window may be taken: only if its contents are not needed."""
        left = self._size - self._start - at
        if length > left - AROUND:
            field = f"a length of {length:,} bytes, and the file has {max(0, left - AROUND):,} more"
            self.trouble = field, max(0, left - HEAD.size)
            return False
        self.wants = 0 if contents is False else length + AROUND
        return not contents

    def sound(self, path: object, number: int, damages: list[Damage]) -> Intact:
        """Return the records whose data has the right checksum; append others to `damages`, numbered from `number`."""
        seen = list(map(self._lengths.crc, self.bodies))
        bad = set(self._wrong(seen))
        for k in sorted(bad):
            (check,) = CHECK.unpack_from(self._window, self._ends[k])
            field = _blame(masked(seen[k]), check, "data")
            damages.append(Damage(str(path), number + k, self._start + self.starts[k], field))
        records = zip(map(self._start.__add__, self.starts), self.bodies, strict=True)
        return [pair for k, pair in enumerate(records) if k not in bad] if bad else list(records)

    def _wrong(self, seen: list[int]) -> list[int]:
        """Return the records whose checksum is not that of the file. Many records are compared at once with numpy."""
        if len(seen) < _MANY:
            tail, window = CHECK.unpack_from, self._window
            return [k for k, end in enumerate(self._ends) if masked(seen[k]) != tail(window, end)[0]]
        import numpy as np

        ends, crcs = np.array(self._ends), np.array(seen, dtype=np.uint32)
        places = ends[:, None] + np.arange(CHECK.size)
        checks = np.frombuffer(self._window, np.uint8)[places].view("<u4")[:, 0]
        rotated = crcs >> np.uint32(15) | crcs << np.uint32(17)
        wrong: list[int] = np.flatnonzero(rotated + np.uint32(_DELTA) != checks).tolist()
        return wrong


class Lengths:
    """Lengths and their checksums. Most records of a file have few lengths, so a checksum is rarely computed."""

    def __init__(self, crc: Any) -> None:
        self.crc = crc
        self.known: dict[int, int] = {}  # length -> its checksum

    def check(self, length: int, check: int) -> str:
        """Return the damaged field; empty if there is none."""
        seen = masked(self.crc(length.to_bytes(8, "little")))
        if seen != check:
            return _blame(seen, check, "length")
        if len(self.known) >= _KNOWN:
            self.known.clear()
        self.known[length] = check
        return ""


def _blame(seen: int, check: int, field: str) -> str:
    """Return the field that was damaged.

    If the checksum differs in one bit, the checksum itself is most likely damaged.
    """
    return f"checksum of {field}" if (seen ^ check).bit_count() == 1 else field


def _read(stream: ByteStream, offset: int, count: int) -> bytes:
    stream.seek(offset)
    return stream.read(count)


def unpack(name: object, number: int, offset: int, frame: bytes | memoryview, lengths: Lengths) -> bytes:
    """Return the data of one record whose frame was read by its index. Raises if a checksum is wrong."""
    if len(frame) >= AROUND:
        length, check = HEAD.unpack_from(frame)
        if lengths.known.get(length) != check and (field := lengths.check(length, check)):
            raise damaged(name, number, offset, field)
        if length == len(frame) - AROUND:
            data = bytes(frame[HEAD.size : -CHECK.size])
            (check,) = CHECK.unpack_from(frame, HEAD.size + length)
            seen = masked(lengths.crc(data))
            if seen != check:
                raise damaged(name, number, offset, _blame(seen, check, "data"))
            return data
    raise damaged(name, number, offset, "a length that is not the one in the index")


def damaged(name: object, number: int, offset: int, field: str) -> DamagedFile:
    return DamagedFile(name, offset, why=f"record {number}, which begins there, has a damaged {field}")
