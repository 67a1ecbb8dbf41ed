"""Records in an object store: a folder of this machine that mirrors the objects below an address.

    pull    objects that are new or have changed -> ~/.cache/paceline/runs/...
    push    files that are new or have changed since -> objects

Everything that reads or writes records works on the folder. Objects that nobody here has changed are never written,
and files that were changed here are neither overwritten nor deleted before they are uploaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from paceline.errors import DamagedFile, WrongCommand
from paceline.files.read import read_bytes, read_text
from paceline.files.snapshot import atomic
from paceline.workload.objects.address import Item, parse
from paceline.workload.objects.blocks import BLOCK
from paceline.workload.objects.bucket import Bucket

TAGS = ".tags.json"  # name -> the object that the file is a copy of, and the file when it was copied
LOCK = ".lock"
LARGEST = 1 << 30  # bytes of a file


class Copy(NamedTuple):
    """A file that is a copy of an object: tag of the object, size and time of the file. Size -1: it is being made."""

    tag: str
    size: int = -1
    time: int = -1


UNKNOWN = Copy("")  # it may be an old copy, or a file that waits for its upload


class Mirror:
    """The records below one address."""

    def __init__(self, address: str, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self.address = parse(address)
        self._bucket = Bucket(self.address, environ=environ)
        name = hashlib.blake2b(f"{self._bucket.endpoint}|{self.address}".encode(), digest_size=12).hexdigest()
        cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = cache / "paceline" / "runs" / name

    def pull(self) -> None:
        """Bring the folder up to date with the objects. Files that wait for their upload stay as they are."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._alone():
            copies, items = self._copies(), self._items()
            changed = set(self._changed(copies))
            copied = {name: item for name, item in items.items() if name not in changed}
            wanted = {name: item for name, item in copied.items() if self._is_old(name, item, copies)}
            # If this process is killed now, the next pull knows which files are copies, and may be overwritten.
            self._write(copies | {name: Copy(item.tag) for name, item in wanted.items()})
            for name in copies.keys() - items.keys() - changed:  # somebody has deleted the object
                if copies[name] != UNKNOWN:
                    self._path(name, name).unlink(missing_ok=True)
            for name, item in wanted.items():
                self._fetch(item, self._path(name, item))
            # A file that was no old copy keeps what was known: it may have been changed while others were fetched.
            kept = {name: copy for name, copy in copies.items() if name in changed or name in copied}
            fresh = {name: Copy(item.tag, *_state(self._path(name, item))) for name, item in wanted.items()}
            self._write(kept | fresh)

    def push(self) -> list[str]:
        """Upload files that are new or have changed since they were copied; return their names."""
        names = []
        with self._alone():
            copies = self._copies()
            try:
                for name in self._changed(copies):
                    path = self._path(name, name)
                    state = _state(path)
                    tag = self._bucket.write(self.address.key(name), read_bytes(path, LARGEST))
                    copies[name] = Copy(tag, *state)
                    names.append(name)
            finally:
                self._write(copies)
        return names

    def _items(self) -> dict[str, Item]:
        """Return the objects by the names of their files, without the empty objects that stand for folders."""
        start = self.address.key("")
        items = {item.key.removeprefix(start): item for item in self._bucket.listing() if item.key.startswith(start)}
        folders = {name[:at] for name in items for at, sign in enumerate(name) if sign == "/"}
        for name in folders & items.keys():
            if items[name].size:
                raise WrongCommand(f"{items[name]}", why="other keys use it as a folder", remedy="another prefix")
        hidden = {name for name in items if name.rpartition("/")[2].startswith(".")}  # such files are never uploaded
        return {name: item for name, item in items.items() if name not in folders | hidden and self._path(name, item)}

    def _is_old(self, name: str, item: Item, copies: Mapping[str, Copy]) -> bool:
        copy = copies.get(name)
        return copy is None or copy[:2] != (item.tag, item.size) or not self._path(name, item).is_file()

    def _changed(self, copies: Mapping[str, Copy]) -> list[str]:
        """Return the names of files that were written here and are not uploaded yet."""
        changed = []
        for name in self._files():
            copy = copies.get(name)
            if copy is None or (copy.size >= 0 and copy[1:] != _state(self._path(name, name))):
                changed.append(name)
        return changed

    def _files(self) -> Iterable[str]:
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.name.startswith(".") and not path.is_symlink():
                yield path.relative_to(self.folder).as_posix()

    def _path(self, name: str, what: object) -> Path:
        parts = name.split("/")
        if not all(parts) or {".", ".."} & set(parts) or "\0" in name:
            raise WrongCommand(f"{what}", why="its key is no path of a file", remedy="--runs with another prefix")
        return self.folder.joinpath(*parts)

    def _fetch(self, item: Item, path: Path) -> None:
        if item.size > LARGEST:
            raise DamagedFile(item, 0, why=f"it has {item.size:,} bytes, at most {LARGEST:,} are read")
        with atomic(path) as stream:
            for start in range(0, item.size, BLOCK):
                stream.write(self._bucket.read(item, start, min(item.size, start + BLOCK)))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one process at a time copy or upload. The kernel releases the lock if the process dies."""
        number = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            yield
        finally:
            os.close(number)

    def _copies(self) -> dict[str, Copy]:
        """Return what is known about the files.

        If that is damaged, all files count as copies that may be old. None of them is deleted.
        """
        path = self.folder / TAGS
        if not path.is_file():
            return {}
        try:
            entries = json.loads(read_text(path, LARGEST))
            return {name: _copy(entry) for name, entry in entries.items()}
        except (ValueError, AttributeError, RecursionError):
            return dict.fromkeys(self._files(), UNKNOWN)

    def _write(self, copies: Mapping[str, Copy]) -> None:
        with atomic(self.folder / TAGS) as stream:
            stream.write(json.dumps(copies).encode())


def _copy(entry: object) -> Copy:
    """Return an entry of the file of tags; a text is the tag alone, as earlier versions wrote it."""
    match entry:
        case str(tag):
            return Copy(tag)
        case [str(tag), int(size), int(time)]:
            return Copy(tag, size, time)
    raise ValueError(entry)


def _state(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns
