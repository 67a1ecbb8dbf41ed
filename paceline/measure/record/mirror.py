"""Records in an object store: a folder of this machine that mirrors the objects below an address.

    pull    objects that are new or have changed -> ~/.cache/paceline/runs/...
    push    files that are new or have changed since -> objects

Everything that reads or writes records works on the folder. Objects that nobody here has changed are never written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import DamagedFile, WrongCommand
from paceline.files.read import read_bytes, read_text
from paceline.files.snapshot import atomic
from paceline.workload.objects.address import Item, parse
from paceline.workload.objects.blocks import BLOCK
from paceline.workload.objects.bucket import Bucket

TAGS = ".tags.json"  # name -> tag of the object that the file is a copy of
LARGEST = 1 << 30  # bytes of a file


class Mirror:
    """The records below one address."""

    def __init__(self, address: str, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self.address = parse(address)
        self._bucket = Bucket(self.address, environ=environ)
        name = hashlib.blake2b(f"{self._bucket.endpoint}|{self.address}".encode(), digest_size=12).hexdigest()
        cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = cache / "paceline" / "runs" / name
        self._seen: dict[str, tuple[int, int]] = {}

    def pull(self) -> None:
        """Bring the folder up to date with the objects."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        known, tags = self._tags(), {}
        for item in self._bucket.listing():
            name = item.key.removeprefix(self.address.key(""))
            path = self._path(name, item)
            if known.get(name) != item.tag or not path.is_file() or path.stat().st_size != item.size:
                self._fetch(item, path)
            tags[name] = item.tag
        for name in known.keys() - tags.keys():  # somebody has deleted the object
            self._path(name, name).unlink(missing_ok=True)
        with atomic(self.folder / TAGS) as stream:
            stream.write(json.dumps(tags).encode())
        self._seen = {name: _state(path) for name, path in self._files() if name in tags}

    def push(self) -> list[str]:
        """Upload files that are new or have changed since `pull`; return their names."""
        fresh = [(name, path) for name, path in self._files() if self._seen.get(name) != _state(path)]
        for name, path in fresh:
            self._bucket.write(self.address.key(name), read_bytes(path, LARGEST))
            self._seen[name] = _state(path)
        return [name for name, _ in fresh]

    def _files(self) -> Iterator[tuple[str, Path]]:
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.name.startswith(".") and not path.is_symlink():
                yield path.relative_to(self.folder).as_posix(), path

    def _path(self, name: str, what: object) -> Path:
        parts = name.split("/")
        if not all(parts) or {".", ".."} & set(parts) or "\0" in name:
            raise WrongCommand(f"{what}", why="its key is no path of a file", remedy="--runs with another prefix")
        return self.folder.joinpath(*parts)

    def _fetch(self, item: Item, path: Path) -> None:
        if item.size > LARGEST:
            raise DamagedFile(item, 0, why=f"it has {item.size:,} bytes, at most {LARGEST:,} are read")
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as stream:
            for start in range(0, item.size, BLOCK):
                stream.write(self._bucket.read(item, start, min(item.size, start + BLOCK)))

    def _tags(self) -> dict[str, Any]:
        path = self.folder / TAGS
        try:
            tags = json.loads(read_text(path, LARGEST)) if path.is_file() else {}
        except ValueError:
            return {}
        return tags if isinstance(tags, dict) else {}


def _state(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns
