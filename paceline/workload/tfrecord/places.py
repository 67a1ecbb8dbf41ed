"""The places of shards: a folder of this machine, or objects below an address. Both can list, read and scan."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Protocol

from paceline.errors import DamagedFile, WrongCommand
from paceline.files.read import read_bytes
from paceline.workload.objects.address import Address, Item, is_address, parse
from paceline.workload.objects.blocks import BLOCK, Blocks, ObjectStream
from paceline.workload.objects.bucket import Bucket
from paceline.workload.tfrecord.frames import Damage, scan, scan_stream

OPEN = 256  # files that are open at once
File = Path | Item


class ShardPlace(Protocol):
    """The files of a data set."""

    def files(self) -> list[File]:
        """Return the files, sorted by name. Raises if there is no such place."""

    def content(self, file: File, most: int) -> bytes:
        """Return a small file."""

    def size(self, file: File) -> int: ...

    def version(self, file: File) -> str:
        """Return a text that changes when the content of the file changes."""

    def scan(self, file: File, damages: list[Damage], *, contents: bool) -> Iterator[int]:
        """Yield the offset of every intact record."""

    def read(self, file: File, start: int, count: int) -> bytes | memoryview: ...

    def expect(self, file: File, start: int, count: int) -> None:
        """Start to read bytes that are needed soon."""


def place_of(text: str, endpoint: str = "") -> ShardPlace:
    """Return the place of a folder or an address."""
    return Objects(parse(text), endpoint) if is_address(text) else Folder(Path(text).expanduser())


class Folder:
    """A folder of this machine. Files that were read from stay open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[Path, int] = {}

    def __str__(self) -> str:
        return str(self._folder)

    def __del__(self) -> None:
        for number in self._open.values():
            os.close(number)

    def files(self) -> list[File]:
        if not self._folder.is_dir():
            raise WrongCommand(
                f"tfrecord({self._folder})", why="there is no such folder", remedy="paceline data pack SOURCE DIR"
            )
        return [path for path in sorted(self._folder.iterdir()) if path.is_file()]

    def content(self, file: File, most: int) -> bytes:
        return read_bytes(_path(file), most)

    def size(self, file: File) -> int:
        return _path(file).stat().st_size

    def version(self, file: File) -> str:
        about = _path(file).stat()
        return f"{_path(file).resolve()}|{about.st_size}|{about.st_mtime_ns}"

    def scan(self, file: File, damages: list[Damage], *, contents: bool) -> Iterator[int]:
        yield from (offset for offset, _ in scan(_path(file), damages, contents=contents))

    def read(self, file: File, start: int, count: int) -> bytes:
        return os.pread(self._number(_path(file)), count, start)

    def expect(self, file: File, start: int, count: int) -> None:
        """Do nothing, because the operating system reads ahead."""

    def _number(self, path: Path) -> int:
        number = self._open.get(path)
        if number is None:
            if len(self._open) >= OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            number = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return number


class Objects:
    """Objects directly below an address, as in a folder without its subfolders."""

    def __init__(self, address: Address, endpoint: str = "") -> None:
        self._address = address
        self.bucket = Bucket(address, endpoint)
        self.blocks = Blocks(self.bucket)

    def __str__(self) -> str:
        return str(self._address)

    @cached_property
    def _listed(self) -> list[File]:
        items = self.bucket.listing()
        beginning = self._address.key("")
        return [item for item in items if "/" not in item.key.removeprefix(beginning)]

    def files(self) -> list[File]:
        if not self._listed:
            raise WrongCommand(
                f"tfrecord({self})", why="there are no objects below it", remedy="look at the prefix, or upload them"
            )
        return self._listed

    def content(self, file: File, most: int) -> bytes:
        item = _item(file)
        if item.size > most:
            raise DamagedFile(item, 0, why=f"it has {item.size:,} bytes, at most {most:,} are read")
        return b"".join(
            self.bucket.read(item, start, min(item.size, start + BLOCK)) for start in range(0, item.size, BLOCK)
        )

    def size(self, file: File) -> int:
        return _item(file).size

    def version(self, file: File) -> str:
        item = _item(file)
        return f"{self.bucket.endpoint}|{item}|{item.size}|{item.tag}"

    def scan(self, file: File, damages: list[Damage], *, contents: bool) -> Iterator[int]:
        stream = ObjectStream(self.bucket, _item(file))
        try:
            sound = scan_stream(file, stream, _item(file).size, damages, contents=contents)
            yield from (offset for records in sound for offset, _ in records)
        finally:
            stream.close()

    def read(self, file: File, start: int, count: int) -> bytes | memoryview:
        return self.blocks.read(_item(file), start, count)

    def expect(self, file: File, start: int, count: int) -> None:
        self.blocks.expect(_item(file), start, count)


def _path(file: File) -> Path:
    assert isinstance(file, Path)
    return file


def _item(file: File) -> Item:
    assert isinstance(file, Item)
    return file
