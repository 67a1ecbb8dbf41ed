"""Choose records, read their events, and write the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.errors import WrongCommand
from paceline.measure.record.store import EventFiles, Skipped, Stored, choose

TITLE = "paceline report"


def gather(texts: Sequence[str], runs: Path) -> tuple[list[Stored], list[Skipped]]:
    """Return the records that folders, files and ids name; without any name, all records in `runs`."""
    chosen, skipped = choose(texts, runs)
    if not chosen:
        place = ", ".join(texts) or str(runs)
        raise WrongCommand(f"there is no record in {place}", why="a report is made of records", remedy="paceline race")
    return chosen, skipped


def report(
    stored: Sequence[Stored], path: Path, *, title: str, skipped: Sequence[Skipped] = (), charts: Path | None = None
) -> Path:
    from paceline.report.page import write_report

    problems = list(skipped)
    records = [entry.record for entry in stored]
    return write_report(records, path, title, events=EventFiles(stored, problems), skipped=problems, charts=charts)
