"""The shards of a data set and their index: where every record begins, and what its fields hold.

    FOLDER/train-00000-of-00004          records; also validation-... or test-...
    FOLDER/paceline-index.json           written by `paceline data pack`

Files from other programs have no index. They are scanned once. The index is kept in the cache folder, never beside the
files, and is found again by their names, sizes and times (for objects, by their ETags).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from paceline.errors import DamagedFile, WrongCommand, short
from paceline.files.read import read_text
from paceline.files.snapshot import DTYPES, atomic
from paceline.workload.tfrecord.frames import AROUND, Damage
from paceline.workload.tfrecord.places import File, ShardPlace

INDEX = "paceline-index.json"
NAME = re.compile(r"(?P<part>train|validation|test)-\d{5}-of-\d{5}(\.tfrecord)?|.+\.tfrecords?")
LARGEST_INDEX = 1 << 30  # bytes


@dataclass(frozen=True)
class Shard:
    """One file or object: its path, its size, and the offset of every record."""

    path: File
    size: int
    offsets: tuple[int, ...]

    def frame(self, number: int) -> tuple[int, int]:
        """Return where a record begins and how many bytes it has, framing included."""
        end = self.offsets[number + 1] if number + 1 < len(self.offsets) else self.size
        return self.offsets[number], end - self.offsets[number]


@dataclass(frozen=True)
class Shards:
    """All shards of one part of a data set; ids count through them in their order."""

    shards: tuple[Shard, ...]
    # Dtypes and shapes that `data pack` wrote; empty for files from other programs.
    fields: tuple[dict[str, Any], ...] = ()
    classes: int = 0

    @cached_property
    def starts(self) -> tuple[int, ...]:
        return (0, *accumulate(len(shard.offsets) for shard in self.shards))

    def __len__(self) -> int:
        return self.starts[-1]

    def find(self, sample: int) -> tuple[Shard, int]:
        """Return the shard of a sample and its number there."""
        place = bisect_right(self.starts, sample) - 1
        return self.shards[place], sample - self.starts[place]


def files_of(place: ShardPlace, part: str) -> list[File]:
    """Return the shards of a part: train, or the test part under any of its names."""
    names = {"train": ("train",), "test": ("validation", "test")}[part]
    matches = [(file, NAME.fullmatch(file.name)) for file in place.files()]
    chosen = [file for file, match in matches if match and (match["part"] or "train") in names]
    if not chosen and part == "train":
        raise WrongCommand(
            f"tfrecord({place})",
            why="it holds no train-00000-of-... and no *.tfrecord",
            remedy="paceline data pack SOURCE DIR",
        )
    return chosen


def read_shards(place: ShardPlace, part: str, cache: Path | None = None) -> Shards | None:
    """Return the shards of a part with their index, or None if there are no files of this part."""
    files = files_of(place, part)
    if not files:
        return None
    index = _index(place)
    known = {entry["name"]: entry for entry in index[part]} if part in index else {}
    shards = []
    for file in files:
        size, entry = place.size(file), known.get(file.name)
        if entry is not None and entry["size"] != size:
            raise DamagedFile(
                file, min(size, entry["size"]), why=f"it has {size:,} bytes, {entry['size']:,} in the index"
            )
        offsets = tuple(entry["offsets"]) if entry is not None else _scanned(place, file, cache)
        _check(file, size, offsets)
        shards.append(Shard(file, size, offsets))
    return Shards(tuple(shards), tuple(index.get("fields", ())), index.get("classes", 0))


def write_index(
    folder: Path, parts: Mapping[str, Sequence[Shard]], fields: Sequence[dict[str, Any]], classes: int
) -> None:
    content: dict[str, Any] = {"format": 1, "fields": list(fields), "classes": classes}
    for part, shards in parts.items():
        content[part] = [{"name": s.path.name, "size": s.size, "offsets": list(s.offsets)} for s in shards]
    with atomic(folder / INDEX) as stream:
        stream.write(json.dumps(content).encode())


def _index(place: ShardPlace) -> dict[str, Any]:
    file = next((file for file in place.files() if file.name == INDEX), None)
    if file is None:
        return {}
    try:
        content = json.loads(place.content(file, LARGEST_INDEX))
        if content["format"] != 1:
            raise ValueError(f"format {short(str(content['format']))}")
        _check_index(content)
        return dict(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise DamagedFile(
            file, 0, why=f"it is no index of shards ({problem})", remedy="delete it, or pack again"
        ) from None


def _check_index(content: dict[str, Any]) -> None:
    """Raise unless everything in an index has the type that `data pack` writes."""
    entries = [entry for part in ("train", "test") for entry in content.get(part, [])]
    for entry in entries:
        sizes = (entry["size"], *entry["offsets"])
        if not isinstance(entry["name"], str) or not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError("an entry without name, size and offsets")
    for field in content.get("fields", []):
        sizes = field["shape"]
        if (
            field["dtype"] not in DTYPES
            or len(sizes) > 8
            or not all(type(s) is int and 0 <= s < 1 << 40 for s in sizes)
        ):
            raise ValueError("a field without a dtype of tensors and a shape")
    classes = content.get("classes", 0)
    if type(classes) is not int or not 0 <= classes < 1 << 40:
        raise ValueError("a number of classes that cannot be")


def _check(file: File, size: int, offsets: Sequence[int]) -> None:
    rising = all(b - a >= AROUND for a, b in zip(offsets, (*offsets[1:], size), strict=True))
    if offsets and (offsets[0] != 0 or not rising):
        raise DamagedFile(file, 0, why="its index has offsets that cannot be", remedy="delete the index, or pack again")


def _scanned(place: ShardPlace, file: File, cache: Path | None) -> tuple[int, ...]:
    """Return the offsets in a file without an index. One process scans it; others wait and use the result."""
    key = hashlib.blake2b(place.version(file).encode(), digest_size=16).hexdigest()
    kept = (cache or cache_folder()) / f"{key}.json"
    known = _kept(kept)
    if known is not None:
        return known
    kept.parent.mkdir(parents=True, exist_ok=True)
    number = os.open(kept.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(number, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = _kept(kept)
        if known is None:
            known = _scan(place, file)
            with atomic(kept) as stream:
                stream.write(json.dumps(known).encode())
        kept.with_suffix(".lock").unlink(missing_ok=True)
    return known


def _kept(kept: Path) -> tuple[int, ...] | None:
    if kept.exists():
        try:
            return tuple(int(offset) for offset in json.loads(read_text(kept, LARGEST_INDEX)))
        except (ValueError, TypeError):
            kept.unlink(missing_ok=True)
    return None


def _scan(place: ShardPlace, file: File) -> tuple[int, ...]:
    damages: list[Damage] = []
    offsets = tuple(place.scan(file, damages, contents=False))
    if damages:
        raise DamagedFile(file, damages[0].offset, why=f"record {damages[0].record}: {damages[0].field}")
    return offsets


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline" / "shards"
