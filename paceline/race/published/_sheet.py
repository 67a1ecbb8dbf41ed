"""A published table with results of this machine beside it.

    row        published                 here
    name       rate, ratio to its base   rate, ratio to its base, starts, records    or: empty, and why
    name       every other figure        the same figure from our records             or: empty, and why

Figures of this machine come from records only: without records a cell is empty.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from paceline.cluster.environment import capture
from paceline.cluster.lab.network import check_tools
from paceline.cluster.machine import machine
from paceline.errors import PacelineError, WrongCommand
from paceline.measure.record.record import Record
from paceline.measure.record.store import Store
from paceline.measure.stats.intervals import ENOUGH, Interval
from paceline.race.results.fields import fields_of, machine_of
from paceline.race.results.standing import Standing, contender, group, setting
from paceline.race.surroundings import alone
from paceline.race.turns import in_turns
from paceline.run.compose.compose import compose
from paceline.run.run import AXES, Run
from paceline.workload import sources

# ResNet-50 at a size for CPUs. A worker always has one thread, so that one worker is the baseline of several.
SMALL: dict[str, Any] = {
    "model": "resnet50",
    "image_size": 64,
    "batch_size": 16,
    "threads": 1,
    "steps": 4,
    "repeats": 2,
    "warmup": 2,
}
STARTS = ENOUGH  # fresh starts per figure: as many as a verdict needs
LEVEL = 0.1  # share of a speed-up; a claim fails only if an improvement of this size can be ruled out
UNMEASURED = "no record of this machine and version; --measure makes one"
UNTOLD = "records of ours do not tell it"


@dataclass(frozen=True)
class PublishedFigure:
    """A figure of a published row beside its rate and ratio, and how to compute it from records."""

    name: str
    published: float | str | None = None
    ours: Callable[[Standing], float | str | None] | None = None


@dataclass(frozen=True)
class Row:
    """One published figure, and the run that corresponds to it here, or the reason why there is none.

    `base` is the name of the row that `ratio` compares with; an efficiency is also divided by the number of workers.
    If `measurable` is False, existing records count but --measure does not run it. All rows of a sheet have the same
    kinds of `figures`.
    """

    name: str
    rate: float | None = None
    ratio: float | None = None
    run: Run | None = None
    reason: str = ""
    base: str | None = None
    figures: tuple[PublishedFigure, ...] = ()
    measurable: bool = True

    @property
    def wanted(self) -> Run | None:
        """Return the run that --measure starts for this row."""
        return self.run if self.measurable else None


@dataclass(frozen=True)
class Sheet:
    """A published table. `ratio` is the name of its ratio; `here` describes how runs on this machine differ from it.

    With `together`, runs in the same lab share processes, one after the other, to start them only once.
    """

    title: str
    rows: tuple[Row, ...]
    ratio: str = "speed-up"
    here: str = ""
    unit: str = "img"
    per_worker: bool = False
    together: bool = False


@dataclass(frozen=True)
class SheetCell:
    """The result of this machine for one published figure."""

    row: Row
    standing: Standing | None = None
    ratio: Interval | None = None
    reason: str = ""
    repeats: int = 0  # fresh starts of the ratio, on the side that has fewer

    @property
    def state(self) -> str:
        """Return measured, replayed, forecast or empty."""
        return "empty" if self.standing is None else self.standing.kind

    @property
    def records(self) -> tuple[Record, ...]:
        """Return the records of fresh starts, oldest first."""
        return () if self.standing is None else self.standing.records

    @property
    def record(self) -> Record | None:
        """Return the newest record."""
        return None if self.standing is None else self.standing.last

    @property
    def rate(self) -> Interval | None:
        return None if self.standing is None else over_starts(self.standing.rate, len(self.records))

    @property
    def starts(self) -> int:
        """Return the number of fresh starts that are as long as the row requires."""
        return sum(self.row.run is not None and _long_enough(record.run, self.row.run) for record in self.records)

    @property
    def behind(self) -> int:
        """Return the number of starts of the ratio to another row, or of the rate if there is no ratio."""
        return len(self.records) if self.ratio is None or self.row.base == self.row.name else self.repeats

    def value(self, figure: PublishedFigure) -> float | str | None:
        """Return the value of a figure from the records, or None; `missing` gives the reason."""
        return None if self.standing is None or figure.ours is None else figure.ours(self.standing)

    def missing(self, figure: PublishedFigure) -> str:
        return "" if self.value(figure) is not None else self.reason or UNTOLD


@dataclass(frozen=True)
class Filled:
    """A sheet whose cells are filled from records."""

    sheet: Sheet
    cells: tuple[SheetCell, ...]

    def find(self, name: str) -> SheetCell | None:
        return next((cell for cell in self.cells if cell.row.name == name), None)

    @property
    def columns(self) -> list[int]:
        """Return the columns of figures that have a published or a measured value."""
        count = len(self.cells[0].row.figures) if self.cells else 0
        return [k for k in range(count) if self.published(k) or self.shown(k)]

    def published(self, column: int) -> bool:
        return any(cell.row.figures[column].published is not None for cell in self.cells)

    def shown(self, column: int) -> bool:
        return any(cell.value(cell.row.figures[column]) is not None for cell in self.cells)

    @property
    def reasons(self) -> list[str]:
        """Return the reasons why cells are empty, each once."""
        untold = [cell.missing(cell.row.figures[k]) for cell in self.cells for k in self.columns]
        return list(dict.fromkeys(why for why in (*(cell.reason for cell in self.cells), *untold) if why))


class Benchmark(Protocol):
    """The module of one published benchmark: the runs that correspond to its tables, and the conclusions from them."""

    def sheets(self, published: dict[str, Any]) -> list[Sheet]:
        """Return its tables. Each row has the run that corresponds to it."""

    def judge(self, published: dict[str, Any], filled: Sequence[Filled]) -> list[str]:
        """Return each of its conclusions, judged true or false here."""

    def facts(self, published: dict[str, Any]) -> list[tuple[str, str]]:
        """Return pairs of a name and a text that are shown beside the tables."""


@dataclass(frozen=True)
class Reproduction:
    """All filled tables of one published benchmark."""

    name: str
    published: dict[str, Any]
    sheets: tuple[Filled, ...]
    judged: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())

    def missing(self) -> Iterator[Run]:
        """Yield the runs that could fill an empty cell, each once."""
        runs = [c.row.wanted for s in self.sheets for c in s.cells if c.standing is None]
        yield from {key_of(run): run for run in runs if run is not None and not problem_of(run)}.values()

    def rounds(self, starts: int) -> list[list[Run]]:
        """Return the rounds of runs after which every cell has `starts` fresh starts. Runs of one sheet stay together.

        A ratio needs as many rounds in which both of its runs take part.
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

    def starts_of(self, runs: Sequence[Run]) -> list[tuple[Run, ...]]:
        """Group the runs of a round into starts: most runs have their own, some share processes."""
        sheets = [sheet.sheet for sheet in self.sheets if sheet.sheet.together]
        shared = {key_of(row.wanted) for sheet in sheets for row in sheet.rows if row.wanted is not None}
        groups: dict[Any, list[Run]] = {}
        for number, run in enumerate(runs):
            groups.setdefault(_common(run) if key_of(run) in shared else number, []).append(run)
        return [tuple(group) for group in groups.values()]

    def only(self, words: str) -> Reproduction:
        """Return the reproduction with only the tables whose title contains the words."""
        chosen = tuple(sheet for sheet in self.sheets if words.lower() in sheet.sheet.title.lower())
        if not chosen:
            titles = "; ".join(sheet.sheet.title for sheet in self.sheets)
            raise WrongCommand(f"--table {words!r}", why=f"no title of {self.name} has it: {titles}")
        return replace(self, sheets=chosen)


def key_of(run: Run, environment: Mapping[str, Any] | None = None) -> Any:
    """Return a key that is equal for runs that differ only in length.

    The environment defaults to that of this machine.
    """
    where = {"cores": cores(), "variables": os.environ} if environment is None else environment
    return contender(run), run.workers, run.nodes, setting(run, where)


def _common(run: Run) -> str:
    """Return a text that is equal for runs that differ only in how gradients travel, and how long computing takes."""
    return json.dumps(run.model_dump(mode="json", exclude={"strategy", "compute", *AXES}), sort_keys=True)


def _long_enough(run: Run, wanted: Run) -> bool:
    return (run.steps or 0) * run.repeats >= (wanted.steps or 0) * wanted.repeats and run.warmup >= wanted.warmup


def problem_of(run: Run) -> str:
    """Return in one line why a run cannot be done here, or an empty text."""
    try:
        compose(alone(run), machine())
        if run.lab:
            check_tools()
    except PacelineError as problem:
        return str(problem).splitlines()[0].partition(". try: ")[0]
    return ""


def fill(sheet: Sheet, store: Store) -> Filled:
    """Fill the cells with records of this machine and of the installed versions."""
    by_key: dict[Any, list[Record]] = {}
    here = capture()
    for record in (stored.record for stored in store.records):
        if fields_of([record]) and machine_of(record.environment, "") == machine_of(here, ""):
            by_key.setdefault(key_of(record.run, record.environment), []).append(record)
    standings = {row.name: _standing(row, by_key) for row in sheet.rows}
    return Filled(sheet, tuple(_cell(sheet, row, standings) for row in sheet.rows))


def _standing(row: Row, by_key: dict[Any, list[Record]]) -> Standing | None:
    records = [] if row.run is None else by_key.get(key_of(row.run), [])
    if not records:
        return None
    best = next((kind for kind in ("measured", "replayed", "forecast") if any(r.kind == kind for r in records)), "")
    chosen = sorted((r for r in records if r.kind == best), key=lambda r: (r.time, r.id))
    long = [r for r in chosen if row.run is not None and _long_enough(r.run, row.run)]
    run = chosen[0].run
    return Standing(contender(run), run.workers, best, group(run), tuple(long or chosen))


def _cell(sheet: Sheet, row: Row, standings: dict[str, Standing | None]) -> SheetCell:
    standing = standings[row.name]
    if standing is None:
        reason = row.reason or (problem_of(row.run) if row.run else "") or UNMEASURED
        return SheetCell(row, reason=reason)
    base = standings.get(row.base) if row.base else None
    if base is None:
        return SheetCell(row, standing)
    starts = standing.starts_against(base)
    ratio = Interval(1.0, None, None) if base is standing else over_starts(standing.against(base), starts)
    ratio = _divided(ratio, standing.workers / base.workers) if sheet.per_worker else ratio
    return SheetCell(row, standing, ratio, repeats=starts)


def over_starts(interval: Interval, starts: int) -> Interval:
    """Return the interval, or only its centre for a single start: an interval over steps is not one over starts."""
    return interval if starts > 1 else Interval(interval.centre, None, None, interval.confidence)


def _divided(ratio: Interval, by: float) -> Interval:
    low, high = (None if side is None else side / by for side in (ratio.low, ratio.high))
    return Interval(ratio.centre / by, low, high, ratio.confidence)


# figures that several systems print -------------------------------------------------------------------


def mean_of(look: Callable[[Record], float | None]) -> Callable[[Standing], float | None]:
    """Return a figure: the mean over the records of a cell, without those that do not have it."""

    def figure(standing: Standing) -> float | None:
        seen = [value for record in standing.records if (value := look(record)) is not None]
        return sum(seen) / len(seen) if seen else None

    return figure


def box_use(record: Record) -> float | None:
    """Return the share of this machine's cores that the workers of a run used."""
    use = record.resources.get("cpu_use")
    return sum(use) / cores() if use else None


# settings of runs on this machine ------------------------------------------------------------------------


def cores() -> int:
    return len(os.sched_getaffinity(0))


def too_many(workers: int) -> str:
    """Return why a number of workers is not measured here, or an empty text."""
    return "" if workers <= cores() else f"{workers} workers would share the {cores()} cores of this machine"


def has_source(word: str) -> bool:
    return word in sources.MENU.names()
