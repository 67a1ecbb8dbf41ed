"""The event file beside a record: where it is, how it is written, and how it is read.

One JSON list per line: [rank, seconds, kind, step, what, detail]
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.files.read import read_bytes
from paceline.measure.record.record import write

Event = list[Any]  # [seconds, kind, step, what, detail], as a file has it
EventRow = tuple[float, str, int, int, float]  # the same, in the form that a rank writes


def events_of(record: Path) -> Path:
    """Return the path of the events of a record."""
    return record.with_suffix(".events.jsonl")


def find_events(record: Path, name: str | None) -> Path | None:
    """Return the event file that a record names, if it lies beside the record."""
    path = None if name is None else record.parent / Path(name).name
    return path if path is not None and os.path.isfile(path) else None


def write_events(record: Path, events: Sequence[Sequence[Sequence[Any]]]) -> None:
    """Write the events of all ranks, if there are any."""
    lines = [json.dumps([rank, *event]) for rank, of_rank in enumerate(events) for event in of_rank]
    if lines:
        write(events_of(record), "\n".join(lines) + "\n")


def read_events(path: Path | None) -> list[list[Event]]:
    """Return the events of each rank, [seconds, kind, step, what, detail], without damaged lines.

    A file that cannot be read at all is refused.
    """
    ranks: dict[int, list[Event]] = {}
    text = b"" if path is None else read_bytes(path)
    for line in text.decode(errors="replace").splitlines():
        try:
            rank, seconds, kind, step, what, detail = json.loads(line)
            whole = float if kind == "ready" else int
            event = [float(_time(seconds)), str(kind), int(step), int(what), _time(whole(detail))]
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue
        if isinstance(rank, int) and rank >= 0:
            ranks.setdefault(rank, []).append(event)
    return [ranks[rank] for rank in sorted(ranks)]


def _time(value: Any) -> Any:
    """Return a time as a finite number; whole numbers stay whole."""
    number = value if isinstance(value, int) else float(value)
    if not abs(number) < 1e15:
        raise ValueError(value)
    return number
