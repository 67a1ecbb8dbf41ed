"""Fill published tables with results of this machine; one file per published system names the runs to compare."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from paceline.errors import PacelineError
from paceline.measure.measure import OnLine
from paceline.measure.record.store import Store, open_store
from paceline.race.keep import keep, keep_together
from paceline.race.published import load
from paceline.race.published._sheet import STARTS, Benchmark, Reproduction, fill
from paceline.race.surroundings import beside
from paceline.run.run import Run

QUICK = {"steps": 3, "repeats": 2, "warmup": 2}  # most of each with --quick, with one start instead of several
OnStart = Callable[[Sequence[Run], int, int, float | None], None]  # runs, the start's number, how many, seconds left


def reproduce(name: str, runs: Path, table: str | None = None) -> Reproduction:
    """Return the published tables of one system, filled from the records in `runs`.

    With `table`, return only those whose title contains this text.
    """
    published = load(name)
    system = _system(name)
    store = open_store([runs]) if runs.is_dir() else Store()
    filled = tuple(fill(sheet, store) for sheet in system.sheets(published))
    reproduction = Reproduction(
        name=name,
        published=published,
        sheets=filled,
        judged=tuple(system.judge(published, filled)),
        facts=tuple(system.facts(published)),
        notes=tuple(published["notes"]),
    )
    return reproduction if table is None else reproduction.only(table)


def _system(name: str) -> Benchmark:
    return cast(Benchmark, importlib.import_module(f"paceline.race.published.{name}"))


def measure_missing(
    name: str,
    runs: Path,
    *,
    quick: bool,
    starts: int = STARTS,
    table: str | None = None,
    minutes: float | None = None,
    on_start: OnStart | None = None,
    on_line: OnLine | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[str], int]:
    """Measure the runs that empty cells need, and keep their records.

    With `minutes`, start nothing that would probably end after them. Return one line per failure, and the number of
    starts that are left. `on_line` gets the output of starts that several runs share.
    """
    reproduction = reproduce(name, runs, table)
    rounds = [list(reproduction.missing())] if quick else reproduction.rounds(starts)
    sitting = datetime.now(timezone.utc).isoformat()
    problems: list[str] = []
    turns = [(number + 1, group) for number, wanted in enumerate(rounds) for group in reproduction.starts_of(wanted)]
    began = clock()
    seconds: list[float] = []  # of each start so far
    for k, (number, group) in enumerate(turns):
        now, left = clock(), len(turns) - k
        if minutes is not None and now - began + max(seconds, default=0.0) > 60 * minutes:
            return problems, left
        if on_start is not None:
            on_start(group, k + 1, len(turns), fmean(seconds) * left if seconds else None)
        turn = {"name": f"reproduce {name}", "round": number, "sitting": sitting}
        problems += _measured([_brief(run) if quick else run for run in group], runs, turn, on_line)
        seconds.append(clock() - now)
    return problems, 0


def _brief(run: Run) -> Run:
    return run.with_(**{name: min(value, getattr(run, name) or value) for name, value in QUICK.items()})


def _measured(group: Sequence[Run], runs: Path, turn: dict[str, Any], on_line: OnLine | None) -> list[str]:
    """Measure the runs of one start and keep their records. Return one line per failure."""
    try:
        if len(group) > 1:
            keep_together(group, runs, race=turn, on_line=on_line or (lambda *_: None))
        else:
            with beside(group[0]):
                keep(group[0], runs, on_line=lambda *_: None, race=turn)
    except PacelineError as problem:
        return [f"{run.text}: {str(problem).splitlines()[0]}" for run in group]
    return []
