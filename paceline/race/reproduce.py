"""Fill published tables with results of this machine; one file per published system names the runs to compare."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import cast

from paceline.errors import PacelineError, WrongCommand
from paceline.measure.record.store import Store, open_store
from paceline.race.disturbed import is_elastic, keep_elastic
from paceline.race.keep import keep
from paceline.race.published import load
from paceline.race.published._sheet import STARTS, Benchmark, Reproduction, fill
from paceline.race.surroundings import beside
from paceline.run.run import Run

QUICK = {"steps": 3, "repeats": 2, "warmup": 2}  # lengths of --quick, with one start instead of several
OnRun = Callable[[Run, int, int, float | None], None]  # run, its number, how many, seconds left


def reproduce(name: str, runs: Path) -> Reproduction:
    """Return the published tables of one system, filled from the records in `runs`."""
    published = load(name)
    system = _system(name)
    store = open_store([runs]) if runs.is_dir() else Store()
    filled = tuple(fill(sheet, store) for sheet in system.sheets(published))
    return Reproduction(
        name=name,
        published=published,
        sheets=filled,
        judged=tuple(system.judge(published, filled)),
        facts=tuple(system.facts(published)),
        notes=tuple(published["notes"]),
    )


def _system(name: str) -> Benchmark:
    return cast(Benchmark, importlib.import_module(f"paceline.race.published.{name}"))


def measure_missing(
    name: str,
    runs: Path,
    *,
    quick: bool,
    starts: int = STARTS,
    only: str = "",
    minutes: float | None = None,
    on_run: OnRun | None = None,
    on_rest: Callable[[int], None] = lambda count: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Measure the runs that empty cells need, and keep their records. Return one line per failure.

    `only` is a part of the titles of the tables to measure. No run is started that would end after so many `minutes`,
    judged by the runs before it; `on_rest` gets the number of runs that are left then.
    """
    reproduction = _titled(reproduce(name, runs), only)
    rounds = [list(reproduction.missing())] if quick else reproduction.rounds(starts)
    sitting = datetime.now(timezone.utc).isoformat()
    problems = []
    turns = [(number + 1, run) for number, wanted in enumerate(rounds) for run in wanted]
    began = clock()
    for k, (number, run) in enumerate(turns):
        if minutes is not None and k and (clock() - began) * (k + 1) / k > 60 * minutes:
            on_rest(len(turns) - k)
            break
        elastic = is_elastic(run)  # its steps must last until a new worker has joined, so they are not fewer
        run = run.with_(**QUICK) if quick and not elastic else run
        if on_run is not None:
            on_run(run, k + 1, len(turns), (clock() - began) / k * (len(turns) - k) if k else None)
        turn = {"name": f"reproduce {name}", "round": number, "sitting": sitting}
        try:
            if elastic:
                keep_elastic(run, runs, race=turn)
                continue
            with beside(run):
                keep(run, runs, on_line=lambda *_: None, race=turn)
        except PacelineError as problem:
            problems.append(f"{run.text}: {str(problem).splitlines()[0]}")
    return problems


def _titled(reproduction: Reproduction, only: str) -> Reproduction:
    """Return the reproduction with only those tables whose titles contain a text."""
    chosen = tuple(sheet for sheet in reproduction.sheets if only.lower() in sheet.sheet.title.lower())
    if not chosen:
        raise WrongCommand(
            f"--only {only}",
            why=f"no table of {reproduction.name} has it in its title",
            remedy="a part of: " + "; ".join(sheet.sheet.title for sheet in reproduction.sheets),
        )
    return replace(reproduction, sheets=chosen)
