"""paceline reproduce: a published benchmark beside the results of this machine."""

from __future__ import annotations

import json as jsons
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.measure.record.record import check_writable, write
from paceline.race.lines import spoken_time
from paceline.report.tables import plain

if TYPE_CHECKING:
    from paceline.race.published._forecast import Forecasts
    from paceline.race.published._sheet import Filled, PublishedFigure, Reproduction, SheetCell
    from paceline.run.run import Run

NAMES = "bluefog, ddl_benchmarks, dlaas, elasticdl or tensorpack"
WIDTH = 80


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"{NAMES}.")],
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Before printing, run every configuration that has no record yet."),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="With --measure: run each configuration once, and briefly.")
    ] = False,
    starts: Annotated[
        int,
        typer.Option(
            "--starts",
            min=1,
            max=10_000,
            help="With --measure: how many records each configuration should have; more give narrower intervals.",
        ),
    ] = 5,
    table: Annotated[
        str | None, typer.Option("--table", metavar="TEXT", help="Only the tables with this text in their title.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            min=0.1,
            max=1_000_000,
            help="With --measure: start nothing that would end later; the same command continues.",
        ),
    ] = None,
    runs: o.Runs = Path("runs"),
    json: o.JsonFile = None,
) -> None:
    """Print a published table beside the results of this machine.

    Each result says whether it is measured, replayed or forecast, and from which records; a cell without a result says
    why. Without --measure only records in --runs are used.
    """
    from paceline.race.published._forecast import forecasts_of
    from paceline.race.reproduce import measure_missing
    from paceline.race.reproduce import reproduce as work

    if json is not None:
        check_writable(json)
    problems, left = (
        measure_missing(
            name,
            runs,
            quick=quick,
            starts=starts,
            table=table,
            minutes=minutes,
            on_start=_tell,
            on_line=_tell_line,
        )
        if measure
        else ([], 0)
    )
    reproduction = work(name, runs, table)
    forecasts = forecasts_of(name, reproduction.published)
    for line in spoken(reproduction, forecasts):
        print(line)
    if left:
        print(f"{left} starts are left: run the same command again", file=sys.stderr)
    for problem in problems:
        print(f"failed: {problem}", file=sys.stderr)
    if json is not None:
        content = {**values(reproduction), "forecast": forecast_values(forecasts)}
        write(json, jsons.dumps(content, indent=1) + "\n")
    if problems:
        raise typer.Exit(1)


def _tell(runs: Sequence[Run], number: int, count: int, left: float | None) -> None:
    rest = "" if left is None else f", about {spoken_time(left)} left"
    others = f", and {len(runs) - 1} more in the same processes" if len(runs) > 1 else ""
    print(f"{number}/{count}{rest}: {runs[0].text}{others}", file=sys.stderr, flush=True)


def _tell_line(rank: int, stream: str, line: str) -> None:
    if rank == 0:
        print(f"    {line}", file=sys.stderr, flush=True)


def spoken(reproduction: Reproduction, forecasts: Forecasts | None = None) -> Iterator[str]:
    """Yield the whole reproduction as lines of at most 80 columns."""
    yield from _wrapped(reproduction.published["title"])
    if "hardware" in reproduction.published:
        yield from _wrapped(f"there: {reproduction.published['hardware']}")
    for sheet in reproduction.sheets:
        yield ""
        yield from _sheet(sheet)
        if forecasts is not None:
            yield from _forecast_column(sheet, forecasts)
    if forecasts is not None and forecasts.rows:
        yield ""
        yield from (line for sentence in forecasts.sentences() for line in _wrapped(sentence))
        yield from (line for text in forecasts.unexplained for line in _wrapped(f"not explained: {text}", "- "))
    sections = {"Conclusions": reproduction.judged, "Published, and contradicting itself": reproduction.notes}
    for title, lines in sections.items():
        if lines:
            yield ""
            yield title
            yield from (line for text in lines for line in _wrapped(text, "- "))
    if reproduction.facts:
        yield ""
        yield from (line for what, text in reproduction.facts for line in _wrapped(f"{what}: {text}", "- "))


def _sheet(filled: Filled) -> Iterator[str]:
    """Yield rates and ratios, then the other figures, then each reason for empty cells once."""
    sheet = filled.sheet
    yield from _wrapped(sheet.title)
    if sheet.here:
        yield from _wrapped(f"here: {sheet.here}")
    width = max(10, *(len(cell.row.name) for cell in filled.cells))
    yield from _rates(filled, width)
    yield from _figures(filled, width)
    yield from (line for k, reason in enumerate(filled.reasons) for line in _wrapped(reason, f"({k + 1}) "))


def _forecast_column(filled: Filled, forecasts: Forecasts) -> Iterator[str]:
    """Yield the forecast and its error for every row, from published facts alone; the calibrating row is marked."""
    title = filled.sheet.title
    rows = [(cell.row.name, known) for cell in filled.cells if (known := forecasts.find(title, cell.row.name))]
    if not rows:
        return
    width = max(10, *(len(cell.row.name) for cell in filled.cells))
    unit = f"{filled.sheet.unit}/s"
    yield f"{'':{width}} | {'there':>7} {'forecast':>9} {'error':>6} {'naive':>6}   {unit}"
    for name, known in rows:
        rate = known.task.rate
        errors = f"{known.rate:>9,.{0 if rate >= 1000 else 1}f} {known.error:>6.0%} {known.naive_error:>6.0%}"
        shown = "  calibrates the forecast" if known.task.calibrates else errors
        yield f"{name:{width}} | {rate:>7g} {shown}"


def forecast_values(forecasts: Forecasts) -> dict[str, Any]:
    """Return the forecasts as JSON values."""
    rows = [
        {
            "sheet": row.task.sheet,
            "row": row.task.row,
            "published": row.task.rate,
            "forecast": row.rate,
            "naive": row.naive,
            "calibrates": row.task.calibrates,
        }
        for row in forecasts.rows
    ]
    return {"rows": rows, "unexplained": list(forecasts.unexplained)}


def _rates(filled: Filled, width: int) -> Iterator[str]:
    name, unit, reasons = filled.sheet.ratio, f"{filled.sheet.unit}/s", filled.reasons
    wide = max(8, len(name))
    yield f"{'':{width}} | {'published':^{8 + wide}} | here"
    yield f"{'':{width}} | {unit:>7} {name:>{wide}} | {unit:>6} {name:>17} starts record"
    for cell in filled.cells:
        row = cell.row
        rate = "-" if row.rate is None else f"{row.rate:g}"
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        yield f"{row.name:{width}} | {rate:>7} {ratio:>{wide}} | {_here(cell, reasons)}"


def _here(cell: SheetCell, reasons: Sequence[str]) -> str:
    """Return the end of the newest record's id, and how many more records the cell has."""
    if cell.rate is None or cell.record is None:
        return f" empty ({reasons.index(cell.reason) + 1})"
    rate = f"{cell.rate.centre:.{1 if cell.rate.centre < 10_000 else 0}f}"
    centre = "-" if cell.ratio is None else f"{cell.ratio.centre:.2f}"
    ratio = "-" if cell.ratio is None else plain(cell.ratio)
    more = f" +{len(cell.records) - 1}" if len(cell.records) > 1 else ""
    if cell.state == "replayed":
        return f"{rate:>6} {ratio:>17} {cell.behind:>6} replayed"
    # A forecast is no fresh start, and has no spread of starts.
    shown = f"{ratio:>17} {cell.behind:>6}" if cell.state == "measured" else f"{centre} {cell.state}"
    return f"{rate:>6} {shown:>24} {cell.record.id[-6:]}{more}"


def _figures(filled: Filled, width: int) -> Iterator[str]:
    """Yield the other columns, as many side by side as fit on a line."""
    names = ["", "", *(cell.row.name for cell in filled.cells)]
    columns = [_column(filled, k) for k in filled.columns]
    while columns:
        count = len(columns)
        while count > 1 and width + sum(3 + len(column[0]) for column in columns[:count]) > WIDTH:
            count -= 1
        for line in zip(names, *columns[:count], strict=True):
            yield " | ".join((f"{line[0]:{width}}", *line[1:]))
        columns = columns[count:]


def _column(filled: Filled, k: int) -> list[str]:
    """Return one figure as lines of equal length: its name, then the published and the own value of every row."""
    reasons, figures = filled.reasons, [(cell, cell.row.figures[k]) for cell in filled.cells]
    here = [
        f"({reasons.index(why) + 1})" if (why := cell.missing(figure)) else _short(cell.value(figure))
        for cell, figure in figures
    ]
    sides = [["here", *here]]
    if filled.published(k):
        sides.insert(0, ["there", *(_printed(figure.published) for _, figure in figures)])
    widths = [max(map(len, side)) for side in sides]
    lines = [" ".join(map(str.rjust, line, widths)) for line in zip(*sides, strict=True)]
    name = figures[0][1].name
    return [line.rjust(max(len(name), len(lines[0]))) for line in (name, *lines)]


def _printed(value: float | str | None) -> str:
    """Format a published figure with all its digits."""
    return "-" if value is None else value if isinstance(value, str) else f"{value:g}"


def _short(value: float | str | None) -> str:
    """Format a figure of this machine in at most six characters."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 3}f}"


def _wrapped(text: str, bullet: str = "") -> list[str]:
    indent = " " * len(bullet)
    return textwrap.wrap(text, WIDTH, initial_indent=bullet, subsequent_indent=indent, break_on_hyphens=False)


def values(reproduction: Reproduction) -> dict[str, Any]:
    """Return the reproduction as JSON values, with full ids."""
    sheets = [{"title": s.sheet.title, "cells": [_values(cell) for cell in s.cells]} for s in reproduction.sheets]
    facts = [list(fact) for fact in reproduction.facts]
    lists = {"judged": list(reproduction.judged), "notes": list(reproduction.notes), "facts": facts}
    return {"name": reproduction.name, "sheets": sheets, **lists}


def _values(cell: SheetCell) -> dict[str, Any]:
    ratio = None if cell.ratio is None else {**asdict(cell.ratio), "starts": cell.behind}
    return {
        "name": cell.row.name,
        "published": {"rate": cell.row.rate, "ratio": cell.row.ratio},
        "state": cell.state,
        "reason": cell.reason,
        "run": None if cell.row.run is None else cell.row.run.text,
        "rate": None if cell.rate is None else {**asdict(cell.rate), "starts": len(cell.records)},
        "ratio": ratio,
        "figures": [values for figure in cell.row.figures if (values := _figure(cell, figure))],
        "records": [record.id for record in cell.records],
    }


def _figure(cell: SheetCell, figure: PublishedFigure) -> dict[str, Any] | None:
    """Return the published and the own value of a figure, or None if there is neither."""
    here = cell.value(figure)
    if figure.published is None and here is None:
        return None
    return {"name": figure.name, "published": figure.published, "here": here, "reason": cell.missing(figure)}
