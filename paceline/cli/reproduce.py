"""paceline reproduce: a published benchmark, and beside it what this machine shows."""

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
from paceline.record import check_writable, write
from paceline.report.tables import plain

if TYPE_CHECKING:
    from paceline.jobs.reproduce.sheet import Cell, Filled, Reproduction

NAMES = "bluefog, ddl_benchmarks, dlaas, elasticdl or tensorpack"


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"{NAMES}.")],
    measure: Annotated[bool, typer.Option("--measure", help="Run what is missing, on this machine.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="With --measure: one short start of each.")] = False,
    runs: o.Runs = Path("runs"),
    json: o.JsonFile = None,
) -> None:
    """Print a published table and beside it what this machine shows; every cell of ours names its record.

    A cell is measured, replayed, forecast, or empty with the reason. Without --measure only records in --runs count.
    """
    from paceline.jobs.reproduce import measure_missing
    from paceline.jobs.reproduce import reproduce as work

    if json is not None:
        check_writable(json)
    problems = measure_missing(name, runs, quick=quick, on_run=_tell) if measure else []
    found = work(name, runs)
    for line in spoken(found):
        print(line)
    for problem in problems:
        print(f"failed: {problem}", file=sys.stderr)
    if json is not None:
        write(json, jsons.dumps(values(found), indent=1) + "\n")
    if problems:
        raise typer.Exit(1)


def _tell(run: Any, number: int, count: int) -> None:
    print(f"{number}/{count} {run.text}", file=sys.stderr, flush=True)


def spoken(found: Reproduction) -> Iterator[str]:
    """Everything as lines of at most 80 columns."""
    yield from _wrapped(found.published["title"])
    if "hardware" in found.published:
        yield from _wrapped(f"there: {found.published['hardware']}")
    for sheet in found.sheets:
        yield ""
        yield from _sheet(sheet)
    for title, lines in (("Conclusions", found.judged), ("Published, and contradicting itself", found.notes)):
        if lines:
            yield ""
            yield title
            yield from (line for text in lines for line in _wrapped(text, "- "))
    if found.facts:
        yield ""
        yield from (line for what, text in found.facts for line in _wrapped(f"{what}: {text}", "- "))


def _sheet(filled: Filled) -> Iterator[str]:
    """The table, then the reasons of its empty cells, each once."""
    sheet = filled.sheet
    yield from _wrapped(sheet.title)
    if sheet.here:
        yield from _wrapped(f"here: {sheet.here}")
    reasons = list(dict.fromkeys(cell.reason for cell in filled.cells if cell.reason))
    width = max(10, *(len(cell.row.name) for cell in filled.cells))
    yield f"{'':{width}} | {'published':^20} | here"
    unit = f"{sheet.unit}/s"
    yield f"{'':{width}} | {unit:>9} {sheet.ratio:>10} | {unit:>9} {sheet.ratio:>17}  record"
    for cell in filled.cells:
        row = cell.row
        rate = "-" if row.rate is None else f"{row.rate:g}"
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        yield f"{row.name:{width}} | {rate:>9} {ratio:>10} | {_here(cell, reasons)}"
    yield from (line for k, reason in enumerate(reasons) for line in _wrapped(reason, f"({k + 1}) "))


def _here(cell: Cell, reasons: Sequence[str]) -> str:
    record = cell.record
    if record is None or cell.standing is None:
        return f"    empty ({reasons.index(cell.reason) + 1})"
    ratio = "-" if cell.ratio is None else plain(cell.ratio)
    kind = "" if cell.state == "measured" else f" {cell.state}"
    return f"{cell.standing.rate.centre:>9.1f} {ratio:>17}  {record.id[-6:]}{kind}"


def _wrapped(text: str, bullet: str = "") -> list[str]:
    return textwrap.wrap(text, 80, initial_indent=bullet, subsequent_indent=" " * len(bullet), break_on_hyphens=False)


def values(found: Reproduction) -> dict[str, Any]:
    """The same as JSON, with full ids."""
    sheets = [{"title": s.sheet.title, "cells": [_values(cell) for cell in s.cells]} for s in found.sheets]
    return {"name": found.name, "sheets": sheets, "judged": list(found.judged), "notes": list(found.notes)}


def _values(cell: Cell) -> dict[str, Any]:
    standing = cell.standing
    return {
        "name": cell.row.name,
        "published": {"rate": cell.row.rate, "ratio": cell.row.ratio},
        "state": cell.state,
        "reason": cell.reason,
        "run": None if cell.row.run is None else cell.row.run.text,
        "rate": None if standing is None else asdict(standing.rate),
        "ratio": None if cell.ratio is None else asdict(cell.ratio),
        "records": [] if standing is None else [record.id for record in standing.records],
    }
