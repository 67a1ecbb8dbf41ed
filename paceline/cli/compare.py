"""paceline compare: two records, the ratio of their rates, and what differs between the two stacks."""

from __future__ import annotations

import json as jsons
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from paceline.bench.stats import ENOUGH
from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.show import clipped, table
from paceline.record import Record, check_writable, write
from paceline.report.standing import contender, rate_of
from paceline.report.store import one
from paceline.report.tables import plain

Id = Annotated[str, typer.Argument(metavar="ID", help="An id of paceline list, the part that tells it, or a file.")]


@app.command()
def compare(a: Id, b: Id, runs: o.Runs = Path("runs"), json: o.JsonFile = None) -> None:
    """Compare record A with record B: A's rate over B's, with a 95 % interval, and all that differs between them."""
    from paceline.jobs.compare import compare as work

    if json is not None:
        check_writable(json)
    found = work(one(a, runs).record, one(b, runs).record)
    for line in spoken(found):
        print(line)
    if json is not None:
        values = {
            "first": found.first.id,
            "second": found.second.id,
            "ratio": asdict(found.ratio),
            "differs": found.differs,
            "differences": [asdict(difference) for difference in found.differences],
        }
        write(json, jsons.dumps(values, indent=1) + "\n")


def spoken(found) -> Iterator[str]:  # type: ignore[no-untyped-def]
    yield from (_side("A", found.first), _side("B", found.second))
    yield f"A / B   {plain(found.ratio, 3)}   {_meaning(found.differs)}"
    yield "        95 % interval over repeats inside each run; a race compares fresh starts"
    yield ""
    if not found.differences:
        yield "Nothing else differs: same run, same versions, same machine."
        return
    rows = [(d.what, clipped(d.first, 24), clipped(d.second, 24)) for d in found.differences]
    yield from table(("differs", "A", "B"), rows)


def _side(letter: str, record: Record) -> str:
    rate = f"{rate_of(record):.1f} {record.unit}/s"
    kind = "" if record.kind == "measured" else f", {record.kind}"
    what = f"{contender(record.run)}, {record.run.model}, {record.workers} worker(s)"
    return clipped(f"{letter}       {record.id}  {rate}{kind}: {what}", 80)


def _meaning(differs: bool | None) -> str:
    if differs is None:
        return f"too few repeats to tell: {ENOUGH} are needed"
    return "a difference" if differs else "no difference that these repeats can show"
