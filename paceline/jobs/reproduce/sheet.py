"""A published table with what this machine shows beside it.

    row        published                 here
    name       rate, ratio to its base   rate, ratio to its base, starts, records    or: empty, and why
    name       every other figure        the same of our records                     or: empty, and why

A figure of ours comes from records and from nowhere else: without its records the cell is empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline import sources
from paceline.bench.environment import capture
from paceline.bench.stats import ENOUGH, Interval
from paceline.bench.turns import in_turns
from paceline.compose import compose
from paceline.errors import PacelineError
from paceline.jobs.measure import machine
from paceline.record import Record
from paceline.report.fields import fields_of, machine_of
from paceline.report.standing import Standing, contender, group, setting
from paceline.report.store import Store
from paceline.run import Run

# ResNet-50 as far as a CPU goes; a worker has one thread, alone too, so that one worker is the baseline of several.
SMALL: dict[str, Any] = {
    "model": "resnet50",
    "image_size": 64,
    "batch_size": 16,
    "threads": 1,
    "steps": 4,
    "repeats": 2,
    "warmup": 2,
}
STARTS = ENOUGH  # fresh starts behind a figure: as many as a judgement needs
UNMEASURED = "no record of this machine and version; --measure makes one"
UNTOLD = "records of ours do not tell it"


@dataclass(frozen=True)
class Figure:
    """One more figure of a published row, and how records of ours tell the same."""

    name: str
    published: float | str | None = None
    ours: Callable[[Standing], float | str | None] | None = None


@dataclass(frozen=True)
class Row:
    """One published figure, and the run that answers it here or the reason why none does.

    base is the name of the row that `ratio` compares with; an efficiency is divided by the number of workers too.
    Records of a run that is not `asked` count, but --measure makes none. `figures` are alike in all rows of a sheet.
    """

    name: str
    rate: float | None = None
    ratio: float | None = None
    run: Run | None = None
    reason: str = ""
    base: str | None = None
    figures: tuple[Figure, ...] = ()
    asked: bool = True

    @property
    def wanted(self) -> Run | None:
        """What --measure runs for it."""
        return self.run if self.asked else None


@dataclass(frozen=True)
class Sheet:
    """A published table. `ratio` says what the ratio is called; `here` how the run here differs from theirs."""

    title: str
    rows: tuple[Row, ...]
    ratio: str = "speed-up"
    here: str = ""
    unit: str = "img"
    per_worker: bool = False


@dataclass(frozen=True)
class Cell:
    """What stands beside one published figure."""

    row: Row
    standing: Standing | None = None
    ratio: Interval | None = None
    reason: str = ""
    repeats: int = 0  # fresh starts behind the ratio, on the side that has fewer

    @property
    def state(self) -> str:
        """measured, replayed, forecast or empty."""
        return "empty" if self.standing is None else self.standing.kind

    @property
    def records(self) -> tuple[Record, ...]:
        """Fresh starts, oldest first."""
        return () if self.standing is None else self.standing.records

    @property
    def record(self) -> Record | None:
        """The newest."""
        return None if self.standing is None else self.standing.last

    @property
    def rate(self) -> Interval | None:
        return None if self.standing is None else over_starts(self.standing.rate, len(self.records))

    @property
    def starts(self) -> int:
        """Fresh starts that are as long as the row asks for."""
        return sum(self.row.run is not None and _long_enough(record.run, self.row.run) for record in self.records)

    @property
    def behind(self) -> int:
        """Fresh starts behind the ratio to another row; without one, behind the rate."""
        return len(self.records) if self.ratio is None or self.row.base == self.row.name else self.repeats

    def told(self, figure: Figure) -> float | str | None:
        """What our records say of a figure; `untold` says why they say nothing."""
        return None if self.standing is None or figure.ours is None else figure.ours(self.standing)

    def untold(self, figure: Figure) -> str:
        return "" if self.told(figure) is not None else self.reason or UNTOLD


@dataclass(frozen=True)
class Filled:
    """A sheet with its cells."""

    sheet: Sheet
    cells: tuple[Cell, ...]

    def find(self, name: str) -> Cell | None:
        return next((cell for cell in self.cells if cell.row.name == name), None)

    @property
    def columns(self) -> list[int]:
        """Places of the figures that somebody has, they or we."""
        count = len(self.cells[0].row.figures) if self.cells else 0
        return [k for k in range(count) if self.published(k) or self.shown(k)]

    def published(self, column: int) -> bool:
        return any(cell.row.figures[column].published is not None for cell in self.cells)

    def shown(self, column: int) -> bool:
        return any(cell.told(cell.row.figures[column]) is not None for cell in self.cells)

    @property
    def reasons(self) -> list[str]:
        """Why cells are empty, each once."""
        untold = [cell.untold(cell.row.figures[k]) for cell in self.cells for k in self.columns]
        return list(dict.fromkeys(why for why in (*(cell.reason for cell in self.cells), *untold) if why))


@dataclass(frozen=True)
class Reproduction:
    """Everything that reproducing one published benchmark shows."""

    name: str
    published: dict[str, Any]
    sheets: tuple[Filled, ...]
    judged: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())

    def missing(self) -> Iterator[Run]:
        """Runs that could fill an empty cell, each once."""
        runs = [c.row.wanted for s in self.sheets for c in s.cells if c.standing is None]
        yield from {key_of(run): run for run in runs if run is not None and not problem_of(run)}.values()

    def rounds(self, starts: int) -> list[list[Run]]:
        """Runs that bring every cell to this many fresh starts, taking turns; those of one sheet stay together.

        A ratio needs as many rounds in which both of its runs took part.
        """
        runs: dict[Any, Run] = {}
        had: dict[Any, int] = {}
        home: dict[Any, int] = {}
        for number, sheet in enumerate(self.sheets):
            for cell in sheet.cells:
                base = sheet.find(cell.row.base) if cell.row.base else None
                for run in (cell.row.wanted, base.row.wanted if base else None):
                    if run is not None and not problem_of(run):
                        key = key_of(run)
                        enough = min(cell.starts, cell.repeats if base else starts)
                        runs[key], had[key] = run, min(had.get(key, starts), enough)
                        home.setdefault(key, number)
        rounds = [[key for key in runs if had[key] <= number] for number in range(starts)]
        orders = [in_turns(keys, home.__getitem__, f"round {number}") for number, keys in enumerate(rounds)]
        return [[runs[key] for key in order] for order in orders]


def key_of(run: Run, environment: Mapping[str, Any] | None = None) -> Any:
    """Runs with the same key answer the same question, whatever their length; without an environment, here."""
    where = {"cores": cores(), "variables": os.environ} if environment is None else environment
    return contender(run), run.workers, run.nodes, setting(run, where)


def _long_enough(run: Run, asked: Run) -> bool:
    return (run.steps or 0) * run.repeats >= (asked.steps or 0) * asked.repeats and run.warmup >= asked.warmup


def problem_of(run: Run) -> str:
    """Why this run cannot be done here, in one line; nothing if it can."""
    try:
        compose(run, machine())
    except PacelineError as problem:
        return str(problem).splitlines()[0].partition(". try: ")[0]
    return ""


def fill(sheet: Sheet, store: Store) -> Filled:
    """Cells with the records of this machine, and of the versions that are installed here."""
    found: dict[Any, list[Record]] = {}
    here = capture()
    for record in (stored.record for stored in store.records):
        if fields_of([record]) and machine_of(record.environment, "") == machine_of(here, ""):
            found.setdefault(key_of(record.run, record.environment), []).append(record)
    standings = {row.name: _standing(row, found) for row in sheet.rows}
    return Filled(sheet, tuple(_cell(sheet, row, standings) for row in sheet.rows))


def _standing(row: Row, found: dict[Any, list[Record]]) -> Standing | None:
    records = [] if row.run is None else found.get(key_of(row.run), [])
    if not records:
        return None
    best = next((kind for kind in ("measured", "replayed", "forecast") if any(r.kind == kind for r in records)), "")
    chosen = sorted((r for r in records if r.kind == best), key=lambda r: (r.time, r.id))
    long = [r for r in chosen if row.run is not None and _long_enough(r.run, row.run)]
    run = chosen[0].run
    return Standing(contender(run), run.workers, best, group(run), tuple(long or chosen))


def _cell(sheet: Sheet, row: Row, standings: dict[str, Standing | None]) -> Cell:
    standing = standings[row.name]
    if standing is None:
        reason = row.reason or (problem_of(row.run) if row.run else "") or UNMEASURED
        return Cell(row, reason=reason)
    base = standings.get(row.base) if row.base else None
    if base is None:
        return Cell(row, standing)
    starts = standing.starts_against(base)
    ratio = Interval(1.0, None, None) if base is standing else over_starts(standing.against(base), starts)
    ratio = _divided(ratio, standing.workers / base.workers) if sheet.per_worker else ratio
    return Cell(row, standing, ratio, repeats=starts)


def over_starts(found: Interval, starts: int) -> Interval:
    """An interval is over fresh starts; of a single one only the centre is known, whatever its steps say."""
    return found if starts > 1 else Interval(found.centre, None, None, found.confidence)


def _divided(ratio: Interval, by: float) -> Interval:
    low, high = (None if side is None else side / by for side in (ratio.low, ratio.high))
    return Interval(ratio.centre / by, low, high, ratio.confidence)


# what a run here can ask for ------------------------------------------------------------------------


def cores() -> int:
    return len(os.sched_getaffinity(0))


def too_many(workers: int) -> str:
    """Why a number of workers is not measured here; nothing if it is."""
    return "" if workers <= cores() else f"{workers} workers would share the {cores()} cores of this machine"


def has_source(word: str) -> bool:
    return word in sources.MENU.names()
