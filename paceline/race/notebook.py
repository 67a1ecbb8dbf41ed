"""Races and records from Python, for scripts and notebooks.

result = paceline.race(model="mobilenet_v2", strategies=["allreduce", "wfbp"], minutes=2)
result                          the table and the verdict; a notebook also shows the intervals
result.to_pandas()              one row per contender and start
paceline.records("runs")        all records of a folder, as a sequence
"""

from __future__ import annotations

import html
import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from pydantic import ValidationError

from paceline.errors import MissingPackage, WrongCommand
from paceline.files.redact import redact
from paceline.measure.record.record import Record
from paceline.measure.record.store import open_store
from paceline.measure.stats.intervals import Interval
from paceline.race.cells import Heat
from paceline.race.folder import open_folder
from paceline.race.lines import PrintedLines
from paceline.race.measured import Measurer
from paceline.race.plan import plan
from paceline.race.race import Race, Watcher
from paceline.race.race import race as run_race
from paceline.race.results.standing import Standing, name_of, rate_of, start_ratio
from paceline.race.results.verdict import Verdict
from paceline.race.suite import Suite
from paceline.run.reference import DDP

MOST_ROWS = 12  # rows in the short text of a sequence of records
WIDE, TALL = 360, 22  # pixels of an interval in a notebook


def race(
    *,
    model: str | Sequence[str] = "mobilenet_v2",
    strategies: Sequence[str] = ("allreduce",),
    workers: int | Sequence[int] = 2,
    batch_size: int | Sequence[int] = 16,
    minutes: float | None = None,
    rounds: int | None = None,
    margin: float = 3.0,
    isolated: bool = False,
    settings: Mapping[str, Any] | None = None,
    runs: str | Path = "runs",
    fresh: bool = False,
    progress: bool = True,
    measured: Measurer | None = None,
    watcher: Watcher | None = None,
) -> RaceResult:
    """Race strategies on this machine, as `paceline race` does; `settings` are fields of `Run`.

    Like the command, it continues an unfinished race with the same settings in `runs`, unless `fresh` is set.
    With `progress` a line is printed to stderr when a start has ended; a `watcher` of your own replaces it.
    """
    common = {"steps": 3, "warmup": 3, "repeats": 4, **(settings or {})}
    values: dict[str, Any] = {
        "contenders": list(strategies),
        "models": [model] if isinstance(model, str) else list(model),
        "workers": [workers] if isinstance(workers, int) else list(workers),
        "batch_sizes": [batch_size] if isinstance(batch_size, int) else list(batch_size),
        "margin": margin,
        "isolated": isolated,
        "run": common,
    }
    values |= {name: value for name, value in (("minutes", minutes), ("rounds", rounds)) if value is not None}
    try:
        planned = plan(Suite.model_validate(values))
    except ValueError as problem:
        if isinstance(problem, WrongCommand):
            raise
        raise WrongCommand("paceline.race(...)", why=_first(problem)) from None
    folder, _ = open_folder(planned, Path(runs), fresh=fresh)
    watcher = watcher or (PrintedLines() if progress else None)
    return RaceResult(run_race(planned, folder, measured=measured, watcher=watcher))


def _first(problem: ValueError) -> str:
    """Return the first problem of a validation in one line."""
    if not isinstance(problem, ValidationError):
        return str(problem)
    first = problem.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def records(*places: str | Path) -> Records:
    """Return all records in these folders and files, oldest first; without any, those in `runs`."""
    store = open_store([Path(place) for place in places or ("runs",)])
    return Records(tuple(stored.record for stored in reversed(store.records)))


@dataclass(frozen=True, repr=False)
class Records(Sequence[Record]):
    """Records as a sequence that prints as a table."""

    records: tuple[Record, ...]

    @overload
    def __getitem__(self, place: int) -> Record: ...

    @overload
    def __getitem__(self, place: slice) -> Records: ...

    def __getitem__(self, place: int | slice) -> Record | Records:
        return Records(self.records[place]) if isinstance(place, slice) else self.records[place]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per record, with the figures that people compare."""
        return [_row(record) for record in self.records]

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame."""
        return _frame(self.rows())

    def __repr__(self) -> str:
        shown = self.records[-MOST_ROWS:]
        lines = [f"{len(self)} record{'s' * (len(self) != 1)}"]
        lines += [
            f"{record.id}  {_speed(record):>18}  {redact(name_of(record))}, {record.run.model}" for record in shown
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return _html_table(("record", "contender", "model", "workers", "rate", "verdict"), map(_cells, self.records))


def _cells(record: Record) -> tuple[str, ...]:
    return (
        record.id,
        redact(name_of(record)),
        record.run.model,
        str(record.workers),
        _speed(record),
        record.outcome,
    )


def _speed(record: Record) -> str:
    rate = rate_of(record)
    return "failed" if rate is None else f"{rate:.1f} {record.unit}/s"


def _row(record: Record) -> dict[str, Any]:
    race, run = record.race, record.run
    return {
        "id": record.id,
        "time": record.time,
        "contender": redact(name_of(record)),
        "model": run.model,
        "workers": record.workers,
        "batch_size": run.per_worker,
        "rate": rate_of(record),
        "unit": record.unit,
        "step_seconds": record.step.get("median"),
        "exposed_seconds": record.breakdown.get("exposed"),
        "verdict": record.outcome,
        "race": race.get("name"),
        "round": race.get("round"),
        "shared": race.get("shared"),
        "other_cores": record.busy.get("other_cores"),
    }


def _frame(rows: list[dict[str, Any]]) -> Any:
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError:
        raise MissingPackage("to_pandas()", package="pandas") from None
    return pandas.DataFrame(rows)


class RaceResult:
    """A race that has ended: its verdicts, its records, and the folder that keeps them."""

    def __init__(self, race: Race) -> None:
        self._race = race

    @property
    def folder(self) -> Path:
        return self._race.folder.path

    @property
    def verdicts(self) -> list[Verdict]:
        """One verdict for each heat."""
        return [self._race.verdict(heat) for heat in self._race.plan.heats]

    @property
    def records(self) -> Records:
        return Records(tuple(self._race.records.values()))

    def ratio(self, contender: str, rival: str = DDP.name, heat: int = 0) -> Interval | None:
        """Return the rate of a contender over that of a rival, with its interval; None if one of them has no rate."""
        where = self._race.plan.heats[heat]
        mine, theirs = (self._race.standing(where, label) for label in (contender, rival))
        return None if mine is None or theirs is None else mine.against(theirs)

    def to_pandas(self) -> Any:
        """Return one row per contender and start, with the ratio to ddp in that start."""
        ratios = self._ratios()
        return _frame([{**row, "of_ddp": ratios.get(row["id"])} for row in self.records.rows()])

    def _ratios(self) -> dict[str, float]:
        """Return the ratio of each record to ddp in the same start."""
        ratios: dict[str, float] = {}
        for heat in self._race.plan.heats:
            standings = self._race.field_of(heat).at(heat.workers)
            for ddp in (one for one in standings if one.name == DDP.name):
                for one in standings:
                    ratios |= {mine.id: math.exp(start_ratio(mine, theirs)) for mine, theirs in one.paired(ddp)}
        return ratios

    def __repr__(self) -> str:
        lines = []
        for heat in self._race.plan.heats:
            lines.append(self._race.plan.title(heat))
            for standing in self._race.field_of(heat).at(heat.workers):
                speed = f"{standing.rate.centre:>9.1f} {standing.first.unit}/s"
                lines.append(f"  {standing.label:<20} {speed}  {_spoken(self._of_ddp(heat, standing))}".rstrip())
            lines.append(self._race.verdict(heat).headline)
        return redact("\n".join(lines))

    def _of_ddp(self, heat: Heat, standing: Standing) -> Interval | None:
        ddp = next((one for one in self._race.field_of(heat).at(heat.workers) if one.name == DDP.name), None)
        return None if ddp is None or standing.name == DDP.name else standing.against(ddp)

    def _repr_html_(self) -> str:
        return "".join(map(self._heat_html, self._race.plan.heats))

    def _heat_html(self, heat: Heat) -> str:
        rows = []
        for standing in self._race.field_of(heat).at(heat.workers):
            ratio = self._of_ddp(heat, standing)
            speed = f"{standing.rate.centre:.1f} {standing.first.unit}/s"
            rows.append((redact(standing.label), speed, _spoken(ratio), _bar(ratio)))
        title, headline = (redact(text) for text in (self._race.plan.title(heat), self._race.verdict(heat).headline))
        table = _html_table(("contender", "rate", "of ddp", "95 % interval"), rows, raw=3)
        return f"<h4>{html.escape(title)}</h4><p>{html.escape(headline)}</p>{table}"


def _spoken(ratio: Interval | None) -> str:
    if ratio is None:
        return ""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.centre:.2f}x"
    return f"{ratio.centre:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"


def _bar(ratio: Interval | None) -> str:
    """Draw an interval between 0.5 and 1.5, with a line at 1."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return ""

    def place(value: float) -> float:
        return WIDE * (min(1.5, max(0.5, value)) - 0.5)

    middle, line = TALL / 2, 'stroke="#26c" stroke-width="3"'
    return (
        f'<svg width="{WIDE}" height="{TALL}" role="img" aria-label="{_spoken(ratio)}">'
        f'<line x1="{place(1.0)}" x2="{place(1.0)}" y1="0" y2="{TALL}" stroke="#999"/>'
        f'<line x1="{place(ratio.low):.1f}" x2="{place(ratio.high):.1f}" y1="{middle}" y2="{middle}" {line}/>'
        f'<circle cx="{place(ratio.centre):.1f}" cy="{middle}" r="4" fill="#26c"/></svg>'
    )


def _html_table(head: Sequence[str], rows: Any, raw: int = -1) -> str:
    """Return a table; the column `raw` is HTML already, everything else is text."""
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell if k == raw else html.escape(cell)}</td>" for k, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
