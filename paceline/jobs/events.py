"""The event file beside a record: one JSON list per line, [rank, seconds, kind, step, what, detail]."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.record import write


def write_events(record: Path, events: Sequence[Sequence[Any]]) -> str | None:
    """Write the events of all ranks; the file's name, or None if there are none."""
    lines = [json.dumps([rank, *event]) for rank, of_rank in enumerate(events) for event in of_rank]
    if not lines:
        return None
    path = record.with_suffix(".events.jsonl")
    write(path, "\n".join(lines) + "\n")
    return path.name
