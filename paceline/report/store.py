"""Records on disk: found, read, and chosen by id. What cannot be read is named and left out.

runs/20261115-230042/ddp-1.json   a race has a folder      runs/one.json   any folder, at any depth
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError, WrongCommand
from paceline.record import TOO_DEEP, Record, read

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
        if self.record.events is None:
            return None
        path = self.path.parent / Path(self.record.events).name
        return path if path.is_file() else None


@dataclass(frozen=True)
class Skipped:
    """A file that looks like a record and cannot be used."""

    path: Path
    why: str


@dataclass(frozen=True)
class Store:
    """What a folder holds, newest first."""

    records: tuple[Stored, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def find(self, text: str) -> Stored:
        """The record with this id, or the only one whose id begins or ends so."""
        ids = {stored.record.id: stored for stored in self.records}
        if text in ids:
            return ids[text]
        found = sorted(key for key in ids if key.startswith(text) or key.endswith(text))
        if len(found) == 1:
            return ids[found[0]]
        if found:
            shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
            raise WrongCommand(f"record {text!r} could be {len(found)} records", why=shown, remedy="more of the id")
        raise WrongCommand(f"there is no record {text!r}", why=f"{len(ids)} are known", remedy="paceline list")


def open_store(places: Iterable[Path]) -> Store:
    """All records in these folders and files; a record that is met twice counts once."""
    records: dict[str, Stored] = {}
    skipped: list[Skipped] = []
    for path in _files(places):
        found = _read(path)
        if isinstance(found, Skipped):
            skipped.append(found)
        elif found is not None:
            records.setdefault(found.record.id, found)
    newest = sorted(records.values(), key=lambda stored: (stored.record.time, stored.record.id), reverse=True)
    return Store(tuple(newest), tuple(skipped))


def _files(places: Iterable[Path]) -> Iterable[Path]:
    for place in places:
        if place.is_dir():
            yield from sorted(path for path in place.rglob("*.json") if not path.name.startswith("."))
        else:
            yield place


def _read(path: Path) -> Stored | Skipped | None:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        return Skipped(path, f"it is no JSON: {problem}")
    except RecursionError:
        return Skipped(path, TOO_DEEP)
    if not isinstance(values, dict) or len(values.keys() & _MARKS) < 2:
        return None
    try:
        return Stored(read(path), path)
    except PacelineError as problem:
        return Skipped(path, problem.why or problem.what)


def choose(texts: Sequence[str], runs: Path) -> tuple[list[Stored], list[Skipped]]:
    """Records by folder, file or id (looked up in `runs`), in the order in which they were named."""
    store = open_store([runs]) if runs.is_dir() else Store()
    chosen: dict[str, Stored] = {}
    skipped: list[Skipped] = []
    for text in texts:
        place = Path(text)
        if place.exists():
            inside = open_store([place])
            skipped += inside.skipped
            found = list(inside.records)
        else:
            found = [store.find(text)]
        chosen.update((stored.record.id, stored) for stored in found)
    if not texts:
        chosen = {stored.record.id: stored for stored in store.records}
        skipped = list(store.skipped)
    return list(chosen.values()), skipped


def one(text: str, runs: Path) -> Stored:
    """The record that a file or an id names."""
    path = Path(text)
    if path.is_file():
        return Stored(read(path), path)
    return (open_store([runs]) if runs.is_dir() else Store()).find(text)


def read_events(path: Path | None) -> list[list[list[Any]]]:
    """Events of each rank, [seconds, kind, step, what, detail]; lines that are damaged are left out."""
    ranks: dict[int, list[list[Any]]] = {}
    for line in path.read_text(errors="replace").splitlines() if path is not None else ():
        try:
            rank, seconds, kind, step, what, detail = json.loads(line)
            whole = float if kind == "ready" else int
            event = [float(seconds), str(kind), int(step), int(what), whole(detail)]
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue
        if isinstance(rank, int) and rank >= 0:
            ranks.setdefault(rank, []).append(event)
    return [ranks[rank] for rank in sorted(ranks)]
