"""A recorded run, done again here and compared with what it was."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import WrongCommand
from paceline.jobs.compare import Comparison, compare
from paceline.jobs.keep import keep
from paceline.jobs.measure import OnLine
from paceline.record import Record
from paceline.report.store import Stored


def rerun(record: Record, runs: Path, on_line: OnLine | None = None) -> tuple[Stored, Comparison]:
    """The new record, kept in `runs`, and the ratio of the new rate to the old one."""
    if record.kind == "forecast":
        raise WrongCommand(f"record {record.id} is a forecast", why="nothing was run that could be run again")
    fresh, path = keep(record.run, runs, on_line=on_line)
    return Stored(fresh, path), compare(fresh, record)
