"""paceline list: the records of a folder, newest first."""

from __future__ import annotations

import json as jsons
import sys
from pathlib import Path

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.show import clipped, table
from paceline.errors import WrongCommand
from paceline.record import check_writable, write
from paceline.report.standing import name_of, rate_of
from paceline.report.store import Skipped, Stored, open_store

HEAD = ("id", "run", "workers", "rate", "verdict")


@app.command("list")
def records(runs: o.Runs = Path("runs"), json: o.JsonFile = None) -> None:
    """List records, newest first: id, what ran, rate and verdict. What cannot be read is named and left out."""
    if json is not None:
        check_writable(json)
    if not runs.is_dir():
        raise WrongCommand(f"--runs {runs}", why="there is no such folder", remedy="paceline race, or --runs DIR")
    store = open_store([runs])
    for line in table(HEAD, [_row(stored) for stored in store.records]) if store.records else [f"no record in {runs}"]:
        print(line)
    name_skipped(store.skipped)
    if json is not None:
        write(json, jsons.dumps([_values(stored) for stored in store.records], indent=1) + "\n")


def _row(stored: Stored) -> tuple[str, ...]:
    record = stored.record
    rate = rate_of(record)
    told = "-" if rate is None else f"{rate:.1f} {record.unit}/s"
    what = clipped(f"{name_of(record)}, {record.run.model}", 24)
    state = record.outcome if record.kind == "measured" else record.kind
    return record.id, what, str(record.workers), told, state


def _values(stored: Stored) -> dict[str, object]:
    record = stored.record
    values = {name: getattr(record, name) for name in ("id", "time", "kind", "text", "workers", "unit", "verdict")}
    return {**values, "rate": rate_of(record), "path": str(stored.path)}


def name_skipped(skipped: tuple[Skipped, ...] | list[Skipped]) -> None:
    for skip in skipped:
        print(f"left out: {skip.path}: {skip.why}", file=sys.stderr)
