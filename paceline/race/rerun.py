"""Repeat a recorded run on this machine, and compare the two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.errors import WrongCommand
from paceline.measure.measure import OnLine
from paceline.measure.record.record import Record, make_folder
from paceline.measure.record.store import Stored
from paceline.race.compare import Comparison, compare
from paceline.race.keep import check_runs, keep, save
from paceline.race.results.standing import rate_of
from paceline.race.script import launch_measured
from paceline.race.script_record import launched_by, script_of
from paceline.run.compose.compose import servers_of


def check_rerun(record: Record) -> None:
    """Raise if a record cannot be repeated, before anything is printed or started."""
    if record.kind == "forecast":
        raise WrongCommand(f"record {record.id} is a forecast", why="nothing was run that could be run again")
    if record.elastic:
        raise WrongCommand(
            f"record {record.id} is of an elastic job",
            why="its members came and went, which does not happen again",
            remedy=record.text,
        )


def rerun(
    record: Record, runs: Path, on_line: OnLine | None = None, show: Callable[[Record], None] = lambda record: None
) -> tuple[Stored, Comparison | None]:
    """Repeat a run and keep the record in `runs`; return it with the comparison, or None if the old run failed."""
    check_rerun(record)
    script = script_of(record)
    stored = _of_script(record, script, runs) if script else Stored(*keep(record.run, runs, on_line=on_line, show=show))
    return stored, None if rate_of(record) is None else compare([stored.record], [record])


def _of_script(record: Record, script: Sequence[str], runs: Path) -> Stored:
    """Start the script of a record again, with the settings that its launcher had."""
    run, choices = launched_by(record)
    check_runs(runs)
    kept: list[Stored] = []

    def keep_record(fresh: Record) -> None:
        make_folder(runs)
        path = runs / f"{fresh.id}.json"
        kept.append(Stored(save(fresh, [], path), path))

    why = launch_measured(
        script, run=run, choices=choices, servers=servers_of(run), chosen=tuple(choices), keep=keep_record
    )
    if not kept:
        raise WrongCommand(f"record {record.id} is not repeated", why=why, remedy=record.text)
    return kept[0]
