"""A recorded run, done again here and compared with what it was."""

from __future__ import annotations

import shlex
from pathlib import Path

from paceline.errors import WrongCommand
from paceline.jobs.compare import Comparison, compare
from paceline.jobs.keep import keep
from paceline.jobs.measure import OnLine
from paceline.jobs.script import script_of
from paceline.record import Record
from paceline.report.standing import rate_of
from paceline.report.store import Stored


def check_rerun(record: Record) -> None:
    """Refuse what cannot be run again, before anything is printed or started."""
    if record.kind == "forecast":
        raise WrongCommand(f"record {record.id} is a forecast", why="nothing was run that could be run again")
    script = script_of(record)
    if script:
        # A reference stands where a script's own strategy is only in a race, and takes part in every one.
        race = f"paceline race -np {record.workers} {shlex.join(['--', *script])}"
        raise WrongCommand(
            f"record {record.id} is of a script",
            why="its model and data are the script's own",
            remedy=race if record.run.reference else record.text,
        )


def rerun(record: Record, runs: Path, on_line: OnLine | None = None) -> tuple[Stored, Comparison | None]:
    """The new record, kept in `runs`, and the ratio of the new rate to the old one; None if the old run failed."""
    check_rerun(record)
    fresh, path = keep(record.run, runs, on_line=on_line)
    return Stored(fresh, path), None if rate_of(record) is None else compare([fresh], [record])
