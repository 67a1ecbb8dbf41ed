"""paceline list: the records of a folder, newest first; each race is one line."""

from __future__ import annotations

import json as jsons
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.show import clipped, table
from paceline.errors import WrongCommand
from paceline.measure.record.record import check_writable, write
from paceline.measure.record.store import Skipped, Stored, open_store
from paceline.race.results.standing import name_of, rate_of
from paceline.race.script_record import work_of

HEAD = ("id", "run", "workers", "rate", "verdict")
WIDTH = 80


@app.command("list")
def records(
    last: Annotated[int | None, typer.Option("--last", min=1, help="Show only the newest N lines.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Show only runs that failed.")] = False,
    model: Annotated[
        str | None, typer.Option("--model", help="Show only runs whose model has this text in its name.")
    ] = None,
    runs: o.Runs = Path("runs"),
    json: o.JsonFile = None,
) -> None:
    """List records, newest first; a race takes one line.

    To list every start of a race, give its folder: paceline list --runs runs/NAME. Files that cannot be read are
    reported and skipped.
    """
    if json is not None:
        check_writable(json)
    if not os.path.isdir(runs):
        why = f"{runs} is not a folder" if os.path.exists(runs) else "there is no such folder"
        raise WrongCommand(f"--runs {runs}", why=why, remedy="paceline race, or --runs DIR")
    store = open_store([runs], without="profile")
    wanted = [stored for stored in store.records if _is_wanted(stored, failed=failed, model=model)]
    lines = _by_race(wanted, runs)[:last]
    print("\n".join(_fitted([_line(line) for line in lines])) if lines else f"no such record in {runs}")
    name_skipped(store.skipped)
    if json is not None:
        write(json, jsons.dumps([_values(stored) for line in lines for stored in line], indent=1) + "\n")


def _is_wanted(stored: Stored, *, failed: bool, model: str | None) -> bool:
    record = stored.record
    return (not failed or record.verdict == "failed") and (model is None or model in record.run.model)


def _by_race(records: Iterable[Stored], runs: Path) -> list[list[Stored]]:
    """Group the records of each race.

    A group is listed at its newest record; a record of no race forms its own group.
    """
    lines: dict[Path, list[Stored]] = {}
    for stored in records:
        folder = stored.path.parent
        raced = stored.record.race and folder.resolve() != runs.resolve()
        lines.setdefault(folder if raced else stored.path, []).append(stored)
    return list(lines.values())


def _line(line: Sequence[Stored]) -> tuple[str, ...]:
    return _row(line[0]) if len(line) == 1 else _race_row(line)


def _race_row(line: Sequence[Stored]) -> tuple[str, ...]:
    """Return the row of a race: its folder, its contenders, and the number of starts."""
    kept = [stored.record for stored in line]
    names, models = ({f(record): None for record in kept} for f in (name_of, work_of))
    workers = ",".join(str(count) for count in sorted({record.workers for record in kept}))
    failures = sum(record.verdict == "failed" for record in kept)
    what = f"race: {', '.join(sorted(names))}; {', '.join(models)}"
    return line[0].path.parent.name, what, workers, f"{len(kept)} starts", f"{failures} failed" if failures else "done"


def _row(stored: Stored) -> tuple[str, ...]:
    record = stored.record
    rate = rate_of(record)
    shown = "-" if rate is None else f"{rate:.1f} {record.unit}/s"
    state = record.outcome if record.kind == "measured" else record.kind
    return record.id, f"{name_of(record)}, {work_of(record)}", str(record.workers), shown, state


def _fitted(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Format the table in 80 columns: ids stay whole, because users copy them; the column of what ran is cut first."""
    rows = [(name, what, clipped(workers, 9), rate, state) for name, what, workers, rate, state in rows]
    widths = [max(len(row[k]) for row in [HEAD, *rows]) for k in range(len(HEAD))]
    room = max(12, WIDTH - 2 * (len(HEAD) - 1) - sum(widths) + widths[1])
    return list(table(HEAD, [(row[0], clipped(row[1], room), *row[2:]) for row in rows]))


def _values(stored: Stored) -> dict[str, object]:
    record = stored.record
    values = {name: getattr(record, name) for name in ("id", "time", "kind", "text", "workers", "unit", "verdict")}
    return {**values, "rate": rate_of(record), "path": str(stored.path)}


def name_skipped(skipped: tuple[Skipped, ...] | list[Skipped]) -> None:
    for skip in skipped:
        print(f"left out: {skip.path}: {skip.why}", file=sys.stderr)
