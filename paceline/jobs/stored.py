"""Where records stay: one JSON per run in a folder, its event file beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.jobs.events import write_events
from paceline.record import Record, write
from paceline.report.store import Stored


def keep(record: Record, events: Sequence[Sequence[Any]], folder: Path) -> Stored:
    """Write a record under its id; what comes back knows its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record.id}.json"
    record = record.model_copy(update={"events": write_events(path, events)})
    write(path, record.to_json())
    return Stored(record, path)
