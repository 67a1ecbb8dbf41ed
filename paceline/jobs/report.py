"""A report out of records: chosen, their events read, written as one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.errors import WrongCommand
from paceline.report.store import Skipped, Stored, choose, read_events

TITLE = "paceline report"


def gather(texts: Sequence[str], runs: Path) -> tuple[list[Stored], list[Skipped]]:
    """The records that folders, files and ids name; all of `runs` if none is named."""
    found, skipped = choose(texts, runs)
    if not found:
        place = ", ".join(texts) or str(runs)
        raise WrongCommand(f"there is no record in {place}", why="a report is made of records", remedy="paceline race")
    return found, skipped


def report(
    stored: Sequence[Stored], path: Path, *, title: str, skipped: Sequence[Skipped] = (), charts: Path | None = None
) -> Path:
    from paceline.report.page import write_report

    records = [entry.record for entry in stored]
    events = {entry.record.id: ranks for entry in stored if (ranks := read_events(entry.events_path))}
    return write_report(records, path, title, events=events, skipped=skipped, charts=charts)
