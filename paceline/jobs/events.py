"""The event file beside a record: one JSON list per line, [rank, seconds, kind, step, what, detail]."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.record import write


def events_of(record: Path) -> Path:
    """The file of the events of a record."""
    return record.with_suffix(".events.jsonl")


def write_events(record: Path, events: Sequence[Sequence[Any]]) -> None:
    """Write the events of all ranks, if there are any."""
    lines = [json.dumps([rank, *event]) for rank, of_rank in enumerate(events) for event in of_rank]
    if lines:
        write(events_of(record), "\n".join(lines) + "\n")
