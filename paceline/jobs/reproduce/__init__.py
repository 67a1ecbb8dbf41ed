"""Published tables, and beside them what this machine shows; a file per published system says which run answers it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType

from paceline.errors import PacelineError
from paceline.jobs.keep import keep
from paceline.jobs.reproduce.sheet import STARTS, Reproduction, fill
from paceline.published import load
from paceline.report.store import Store, open_store
from paceline.run import Run

QUICK = {"steps": 3, "repeats": 2, "warmup": 2}  # and one start instead of several
OnRun = Callable[[Run, int, int], None]


def reproduce(name: str, runs: Path) -> Reproduction:
    """The published tables of one system, filled from the records in `runs`."""
    published = load(name)
    system = _system(name)
    store = open_store([runs]) if runs.is_dir() else Store()
    filled = tuple(fill(sheet, store) for sheet in system.sheets(published))
    return Reproduction(
        name=name,
        published=published,
        sheets=filled,
        judged=tuple(system.judge(published, filled)) if hasattr(system, "judge") else (),
        facts=tuple(system.facts(published)) if hasattr(system, "facts") else (),
        notes=tuple(published["notes"]),
    )


def _system(name: str) -> ModuleType:
    return importlib.import_module(f"paceline.jobs.reproduce.{name}")


def measure_missing(
    name: str, runs: Path, *, quick: bool, starts: int = STARTS, on_run: OnRun | None = None
) -> list[str]:
    """Run what cells lack and keep the records; what went wrong, in one line each."""
    found = reproduce(name, runs)
    rounds = [list(found.missing())] if quick else found.rounds(starts)
    sitting = datetime.now(timezone.utc).isoformat()
    problems = []
    turns = [(number + 1, run) for number, asked in enumerate(rounds) for run in asked]
    for k, (number, run) in enumerate(turns):
        run = run.with_(**QUICK) if quick else run
        if on_run is not None:
            on_run(run, k + 1, len(turns))
        turn = {"name": f"reproduce {name}", "round": number, "sitting": sitting}
        try:
            keep(run, runs, on_line=lambda *_: None, race=turn)
        except PacelineError as problem:
            problems.append(f"{run.text}: {str(problem).splitlines()[0]}")
    return problems
