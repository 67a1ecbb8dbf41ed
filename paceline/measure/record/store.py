"""Find records on disk, read them, and choose them by id. Files that cannot be read are reported and skipped.

runs/20261115-230042/ddp-1.json   a race has a folder      runs/one.json   any folder, at any depth
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import PacelineError, WrongCommand
from paceline.measure.record.events import Event, find_events, read_events
from paceline.measure.record.record import Record, of_values, read, read_values

# A JSON file with fewer than two of these is something else (a summary, a profile) and no damaged record.
_MARKS = {"schema", "run", "rate", "verdict", "environment"}


@dataclass(frozen=True)
class Stored:
    """A record and the file that it came from."""

    record: Record
    path: Path

    @property
    def events_path(self) -> Path | None:
        """The event file beside the record, if it is there."""
        return find_events(self.path, self.record.events)


@dataclass(frozen=True)
class Skipped:
    """A file that looks like a record but cannot be used."""

    path: Path
    why: str


@dataclass(frozen=True)
class Store:
    """The records of some folders, newest first."""

    records: tuple[Stored, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def find(self, text: str) -> Stored:
        """Return the record with this id, or the only one whose id begins or ends with the text."""
        ids = {stored.record.id: stored for stored in self.records}
        if text in ids:
            return ids[text]
        matching = sorted(key for key in ids if key.startswith(text) or key.endswith(text))
        if len(matching) == 1:
            return ids[matching[0]]
        if matching:
            shown = ", ".join(matching[:5]) + (", ..." if len(matching) > 5 else "")
            raise WrongCommand(f"record {text!r} could be {len(matching)} records", why=shown, remedy="more of the id")
        raise WrongCommand(f"there is no record {text!r}", why=f"{len(ids)} are known", remedy="paceline list")


def open_store(places: Iterable[Path], without: str = "") -> Store:
    """Return all records in these folders and files, each once.

    `without` is an optional field that the caller does not need, such as the profile, which takes most of a record.
    """
    records: dict[str, Stored] = {}
    skipped: list[Skipped] = []
    with _no_collections():
        for path in _files(places):
            entry = _read(path, without)
            if isinstance(entry, Skipped):
                skipped.append(entry)
            elif entry is not None:
                records.setdefault(entry.record.id, entry)
    newest = sorted(records.values(), key=lambda stored: (stored.record.time, stored.record.id), reverse=True)
    return Store(tuple(newest), tuple(skipped))


@contextmanager
def _no_collections() -> Iterator[None]:
    """Switch the garbage collector off: records have no cycles, and the search for cycles takes a third of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _files(places: Iterable[Path]) -> Iterable[Path]:
    for place in places:
        if os.path.isdir(place):
            yield from sorted(path for path in place.rglob("*.json") if not path.name.startswith("."))
        else:
            yield place


def _read(path: Path, without: str) -> Stored | Skipped | None:
    try:
        values = read_values(path, without)
        if not isinstance(values, dict) or len(values.keys() & _MARKS) < 2:
            return None
        return Stored(of_values(path, values), path)
    except PacelineError as problem:
        return Skipped(path, problem.why or problem.what)


def choose(texts: Sequence[str], runs: Path) -> tuple[list[Stored], list[Skipped]]:
    """Return the records that folders, files or ids name, in that order; ids are looked up in `runs`."""
    store = open_store([runs]) if os.path.isdir(runs) and not all(map(os.path.exists, texts or [""])) else Store()
    chosen: dict[str, Stored] = {}
    skipped: list[Skipped] = []
    for text in texts:
        place = Path(text)
        if os.path.exists(place):
            inside = open_store([place])
            skipped += inside.skipped
            named = list(inside.records)
        else:
            named = [store.find(text)]
        chosen.update((stored.record.id, stored) for stored in named)
    if not texts:
        chosen = {stored.record.id: stored for stored in store.records}
        skipped = list(store.skipped)
    return list(chosen.values()), skipped


def one(text: str, runs: Path) -> Stored:
    """Return the record that a file or an id names."""
    path = Path(text)
    if os.path.isfile(path):
        return Stored(read(path), path)
    return (open_store([runs]) if os.path.isdir(runs) else Store()).find(text)


class EventFiles(Mapping[str, list[list[Event]]]):
    """Events by the id of their record, read on first use; `unread` collects the files that cannot be read."""

    def __init__(self, stored: Iterable[Stored], unread: list[Skipped]) -> None:
        self._paths = {entry.record.id: path for entry in stored if (path := entry.events_path)}
        self._unread = unread

    def __getitem__(self, name: str) -> list[list[Event]]:
        path = self._paths[name]
        try:
            return read_events(path)
        except WrongCommand as problem:
            self._unread.append(Skipped(path, problem.why))
            return []

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
