"""The folder of a race: its plan, one record per cell, and a mark for the cell that is running.

    runs/race-20261115-230042/
      race.plan                             the plan; by its digest a restart recognizes the same race
      race.done                             exists once the race is complete
      mobilenet_v2-2x64-ddp-2-round1.json   a finished cell, or a failed one, with its events beside it
      ...-round2.started                    running; after a restart without a record, the cell was killed

A restart keeps every record and writes a record of failure for every mark without one. A damaged record is renamed to
`....damaged-TIME`, and its cell runs again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from paceline.errors import WrongCommand
from paceline.files.read import read_text
from paceline.files.redact import redacted, secrets_of
from paceline.measure.measure import failed_record
from paceline.measure.record.events import events_of
from paceline.measure.record.record import Record, read, write
from paceline.race.keep import save
from paceline.race.plan import Cell, RacePlan, slug
from paceline.race.script import command_of, run_of

KILLED = "the race was ended while this cell was under way"


class RaceFolder:
    """Read and write the files of one race."""

    def __init__(self, path: Path) -> None:
        self.path, self.sitting = path, datetime.now(timezone.utc).isoformat()

    def record_path(self, cell: Cell) -> Path:
        return self.path / f"{cell.name}.json"

    def _mark(self, cell: Cell) -> Path:
        return self.path / f"{cell.name}.started"

    def record_of(self, cell: Cell) -> Record | None:
        """Return the record of a cell that has finished or failed, or None; a damaged record counts as none."""
        path = self.record_path(cell)
        try:
            return read(path) if path.exists() else None
        except WrongCommand:
            return None

    def damaged(self, plan: RacePlan) -> list[tuple[Path, str]]:
        """Return the records that cannot be read, each with the reason."""
        damaged = []
        for path in map(self.record_path, plan.cells):
            try:
                if path.exists():
                    read(path)
            except WrongCommand as problem:
                damaged.append((path, problem.why))
        return damaged

    def begin(self, cell: Cell) -> None:
        write(self._mark(cell), json.dumps({"pid": os.getpid(), "time": _now()}) + "\n")

    def end(self, cell: Cell, record: Record, events: list[list[Any]]) -> Record:
        """Write the record, then remove the mark; a cell that is killed in between counts as finished."""
        turn = {
            "name": self.path.name,
            "round": cell.round,
            "sitting": self.sitting,
            "label": cell.label,
            "heat": cell.title,
            "same_result": cell.same_result,
        }
        record = save(record.model_copy(update={"race": turn}), events, self.record_path(cell))
        self._mark(cell).unlink(missing_ok=True)
        return record

    def fail(self, cell: Cell, why: str) -> Record:
        run = run_of(cell.script, cell.run) if cell.script else cell.run
        text = command_of(cell.script, cell.run) if cell.script else None
        return self.end(cell, failed_record(run, why, text=text), [])

    def fail_killed(self, plan: RacePlan) -> list[Cell]:
        """Record cells that were running when the race was killed as failed, and rename damaged records."""
        for path, _ in self.damaged(plan):
            path.rename(path.with_suffix(f".damaged-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"))
        killed = [cell for cell in plan.cells if self._mark(cell).exists()]
        for cell in killed:
            if self.record_of(cell) is None:
                self.fail(cell, KILLED)
            self._mark(cell).unlink(missing_ok=True)
        return killed

    def incomplete(self, plan: RacePlan) -> set[int]:
        """Return the rounds without usable ratios: a cell failed or never ran, or the round was interrupted."""
        records = [(cell.round, self.record_of(cell)) for cell in plan.cells]
        wrong = {number for number, record in records if record is None or record.verdict == "failed"}
        turns = {(number, record.turn) for number, record in records if record is not None}
        return wrong | {number for number, _ in turns if sum(number == each for each, _ in turns) > 1}

    def reopen(self) -> None:
        (self.path / "race.done").unlink(missing_ok=True)

    def set_aside(self, plan: RacePlan, number: int) -> None:
        """Rename the files of a round whose cells are about to run again."""
        for cell in plan.cells:
            record = self.record_of(cell) if cell.round == number else None
            if record is not None:
                kind = "failed" if record.verdict == "failed" else "earlier"
                aside = self.path / f"{cell.name}.{kind}-{record.id}"
                events = events_of(self.record_path(cell))
                if events.exists():
                    events.rename(f"{aside}.events")
                self.record_path(cell).rename(aside)

    @property
    def done(self) -> bool:
        return (self.path / "race.done").exists()

    def finish(self) -> None:
        write(self.path / "race.done", f"{_now()}\n")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of the folder inside the with-block; the kernel releases it if the process dies."""
        with (self.path / "race.plan").open("r+") as file:  # opened for writing, which a lock over NFS needs
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise WrongCommand(
                    f"the race in {self.path} is running", why="another process runs it", remedy="wait until it ends"
                ) from None
            except OSError as problem:
                raise WrongCommand(
                    f"{self.path} cannot be locked",
                    why=problem.strerror or str(problem),
                    remedy="--runs FOLDER elsewhere",
                ) from None
            yield


def open_folder(plan: RacePlan, runs: Path, *, fresh: bool = False, retry: bool = False) -> tuple[RaceFolder, bool]:
    """Return the folder of an unfinished race of the same plan, or a new one, and whether it existed.

    With `retry`, a complete race is used as well if a cell failed or never ran.
    """
    if not fresh:
        for path in sorted(runs.glob("*/race.plan"), reverse=True):
            folder = RaceFolder(path.parent)
            if _digest(path) == plan.digest and (not folder.done or (retry and folder.incomplete(plan))):
                return folder, True
    return _new(plan, runs), False


def _digest(path: Path) -> str | None:
    try:
        return str(json.loads(read_text(path))["digest"])
    except (WrongCommand, ValueError, KeyError, TypeError, RecursionError):
        return None


def _new(plan: RacePlan, runs: Path) -> RaceFolder:
    stem = f"{slug(plan.suite.name)}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    path, number = runs / stem, 1
    while path.exists():
        number += 1
        path = runs / f"{stem}-{number}"
    path.mkdir(parents=True)
    content = {
        "digest": plan.digest,
        "created": _now(),
        "suite": plan.suite.model_dump(mode="json", exclude_unset=True),
        "script": list(plan.script),
        "cells": [cell.name for cell in plan.cells],
    }
    write(path / "race.plan", json.dumps(redacted(content, secrets_of(os.environ)), indent=1) + "\n")
    return RaceFolder(path)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
