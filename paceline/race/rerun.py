"""Repeat a recorded run on this machine, and compare the two."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from paceline.errors import WrongCommand
from paceline.measure.measure import OnLine
from paceline.measure.record.record import Record
from paceline.measure.record.store import Stored
from paceline.race.compare import Comparison, compare
from paceline.race.keep import keep
from paceline.race.results.standing import rate_of
from paceline.race.script import script_of


def check_rerun(record: Record) -> None:
    """Raise if a record cannot be repeated, before anything is printed or started."""
    if record.kind == "forecast":
        raise WrongCommand(f"record {record.id} is a forecast", why="nothing was run that could be run again")
    script = script_of(record)
    if script:
        # Only a race can replace a script's own strategy by a reference, and every race includes the references.
        race = f"paceline race -np {record.workers} {shlex.join(['--', *script])}"
        raise WrongCommand(
            f"record {record.id} is of a script",
            why="its model and data are the script's own",
            remedy=race if record.run.reference else record.text,
        )


def rerun(
    record: Record, runs: Path, on_line: OnLine | None = None, show: Callable[[Record], None] = lambda record: None
) -> tuple[Stored, Comparison | None]:
    """Repeat a run and keep the record in `runs`; return it with the comparison, or None if the old run failed."""
    check_rerun(record)
    fresh, path = keep(record.run, runs, on_line=on_line, show=show)
    return Stored(fresh, path), None if rate_of(record) is None else compare([fresh], [record])
