"""paceline compare: the ratio of the rates of two runs, and the differences between them."""

from __future__ import annotations

import json as jsons
import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.listing import name_skipped
from paceline.cli.show import clipped, table
from paceline.errors import WrongCommand
from paceline.measure.record.record import Record, check_writable, write
from paceline.measure.record.store import one, open_store
from paceline.measure.stats.intervals import ENOUGH
from paceline.race.results.standing import name_of, rate_of
from paceline.race.script_record import work_of
from paceline.report.tables import plain

if TYPE_CHECKING:
    from paceline.race.compare import Comparison

Id = Annotated[
    str, typer.Argument(metavar="ID", help="Id of a record (see paceline list), a unique part of it, or a file.")
]
First = Annotated[
    str, typer.Argument(metavar="A", help="Records of run A: ids or files separated by commas, or a folder.")
]
Second = Annotated[str, typer.Argument(metavar="B", help="Records of run B, written in the same way.")]


@app.command()
def compare(a: First, b: Second, runs: o.Runs = Path("runs"), json: o.JsonFile = None) -> None:
    """Compare two runs: the ratio of their rates (A / B), and everything else that differs.

    One record of each gives a ratio only. Several records of each give a 95 % interval, and five of each a verdict:
    paceline compare A1,A2,A3,A4,A5 B1,B2,B3,B4,B5, or two folders.
    """
    from paceline.race.compare import compare as work

    if json is not None:
        check_writable(json)
    comparison = work(starts(a, runs), starts(b, runs))
    for line in spoken(comparison):
        print(line)
    if json is not None:
        values = {
            "first": [record.id for record in comparison.first],
            "second": [record.id for record in comparison.second],
            "ratio": asdict(comparison.ratio),
            "differs": comparison.differs,
            "busy": comparison.busy,
            "differences": [asdict(difference) for difference in comparison.differences],
        }
        write(json, jsons.dumps(values, indent=1) + "\n")


def starts(text: str, runs: Path) -> list[Record]:
    """Return the records that one side of the comparison names, each once."""
    words = [text] if os.path.exists(text) else text.split(",")
    records = [record for word in words for record in _named(word, runs)]
    return list({record.id: record for record in records}.values())


def _named(word: str, runs: Path) -> list[Record]:
    """Return the record with this id or in this file, or all records in this folder."""
    if not os.path.isdir(word):
        return [one(word, runs).record]
    store = open_store([Path(word)])
    name_skipped(store.skipped)
    if not store.records:
        raise WrongCommand(f"there is no record in {word}", remedy="paceline list")
    return [stored.record for stored in store.records]


def spoken(comparison: Comparison) -> Iterator[str]:
    yield from (_side("A", comparison.first), _side("B", comparison.second))
    yield f"A / B   {plain(comparison.ratio, 3)}   {_meaning(comparison)}"
    if comparison.starts > 1:
        yield f"        95 % interval over {len(comparison.first)} and {len(comparison.second)} starts"
    if comparison.differs is None:
        yield "        Starts differ by more than what one of them shows inside. For a verdict:"
        yield f"        paceline race, or {ENOUGH} runs of each: paceline compare ID,ID,... ID,ID,..."
    yield ""
    for letter, why in zip("AB", comparison.busy, strict=True):
        if why:
            yield from textwrap.wrap(f"{letter} ran on a busy machine: {why}.", 80, subsequent_indent="  ")
    if not comparison.differences:
        busy = any(comparison.busy)
        alone = "Nothing else differs: same run, same versions, same machine."
        yield "Same run, same versions, same machine, but not equally free." if busy else alone
        return
    rows = [(d.what, clipped(d.first, 24), clipped(d.second, 24)) for d in comparison.differences]
    yield from table(("differs", "A", "B"), rows)


def _side(letter: str, records: Sequence[Record]) -> str:
    first = records[0]
    rate = f"{fmean(rate_of(record) or 0.0 for record in records):.1f} {first.unit}/s"
    kind = "" if first.kind == "measured" else f", {first.kind}"
    what = f"{name_of(first)}, {work_of(first)}, {first.workers} worker(s)"
    name = first.id if len(records) == 1 else f"{len(records)} starts"
    return clipped(f"{letter}       {name}  {rate}{kind}: {what}", 80)


def _meaning(comparison: Comparison) -> str:
    if comparison.starts == 1:
        both = len(comparison.first) == len(comparison.second)
        return f"one start of {'each' if both else 'a side'} gives no verdict"
    if comparison.differs is None:
        return f"too few starts to tell: {ENOUGH} of each are needed"
    return "a difference" if comparison.differs else "no difference that these starts can show"
