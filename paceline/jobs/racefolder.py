"""The folder of a race: its plan, one record per cell, and a mark for the cell that is under way.

    runs/race-20261115-230042/
      race.plan                             what is raced; its digest tells a restart that it is the same race
      race.done                             the race came to its end
      mobilenet_v2-2x64-ddp-2-round1.json   a finished cell, or a failed one, with its events beside it
      ...-round2.started                    under way; without a record beside it, it was killed

A restart keeps every record and turns marks without one into records of a failure. A damaged record is set aside as
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

from paceline.bench.redact import redacted, secrets_of
from paceline.errors import WrongCommand
from paceline.jobs.cells import Cell, RacePlan, slug
from paceline.jobs.keep import save
from paceline.jobs.measure import failed_record
from paceline.jobs.script import command_of, run_of
from paceline.record import Record, read, write

KILLED = "the race was ended while this cell was under way"


class RaceFolder:
    def __init__(self, path: Path) -> None:
        self.path, self.sitting = path, datetime.now(timezone.utc).isoformat()

    def record_path(self, cell: Cell) -> Path:
        return self.path / f"{cell.name}.json"

    def _mark(self, cell: Cell) -> Path:
        return self.path / f"{cell.name}.started"

    def found(self, cell: Cell) -> Record | None:
        """The record of a cell that has ended, well or badly; one that is damaged is none."""
        path = self.record_path(cell)
        try:
            return read(path) if path.exists() else None
        except WrongCommand:
            return None

    def damaged(self, plan: RacePlan) -> list[tuple[Path, str]]:
        """Records of cells that cannot be read, and why."""
        found = []
        for path in map(self.record_path, plan.cells):
            try:
                if path.exists():
                    read(path)
            except WrongCommand as problem:
                found.append((path, problem.why))
        return found

    def begin(self, cell: Cell) -> None:
        write(self._mark(cell), json.dumps({"pid": os.getpid(), "time": _now()}) + "\n")

    def end(self, cell: Cell, record: Record, events: list[list[Any]]) -> Record:
        """The record first, then the mark: killed in between, the cell is finished."""
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

    def bury(self, plan: RacePlan) -> list[Cell]:
        """Cells that were under way when the race was killed become failed ones; damaged records are set aside."""
        for path, _ in self.damaged(plan):
            path.rename(path.with_suffix(f".damaged-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"))
        killed = [cell for cell in plan.cells if self._mark(cell).exists()]
        for cell in killed:
            if self.found(cell) is None:
                self.fail(cell, KILLED)
            self._mark(cell).unlink(missing_ok=True)
        return killed

    def incomplete(self, plan: RacePlan) -> set[int]:
        """Rounds in which a cell failed or never ran, or that were interrupted: their ratios are missing."""
        found = [(cell.round, self.found(cell)) for cell in plan.cells]
        wrong = {number for number, record in found if record is None or record.verdict == "failed"}
        turns = {(number, record.turn) for number, record in found if record is not None}
        return wrong | {number for number, _ in turns if sum(number == other for other, _ in turns) > 1}

    def reopen(self) -> None:
        (self.path / "race.done").unlink(missing_ok=True)

    def set_aside(self, plan: RacePlan, number: int) -> None:
        """A round is about to run again, all of its cells; what they left is kept under other names."""
        for cell in plan.cells:
            record = self.found(cell) if cell.round == number else None
            if record is not None:
                kind = "failed" if record.verdict == "failed" else "earlier"
                aside = self.path / f"{cell.name}.{kind}-{record.id}"
                events = self.record_path(cell).with_suffix(".events.jsonl")
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
        """One process at a time; the kernel lets go of the lock when that process ends, however it ends."""
        with (self.path / "race.plan").open("r+") as file:  # to write: a lock over NFS needs that
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise WrongCommand(
                    f"the race in {self.path} is under way", why="another process runs it", remedy="wait for its end"
                ) from None
            except OSError as problem:
                raise WrongCommand(
                    f"{self.path} cannot be locked",
                    why=problem.strerror or str(problem),
                    remedy="--runs FOLDER elsewhere",
                ) from None
            yield


def open_folder(plan: RacePlan, runs: Path, *, fresh: bool = False, retry: bool = False) -> tuple[RaceFolder, bool]:
    """The folder of an unfinished race of the same plan, or a new one; and whether it was there.

    With `retry`, a race that came to its end is taken too where a cell failed or never ran.
    """
    if not fresh:
        for path in sorted(runs.glob("*/race.plan"), reverse=True):
            folder = RaceFolder(path.parent)
            if _digest(path) == plan.digest and (not folder.done or (retry and folder.incomplete(plan))):
                return folder, True
    return _new(plan, runs), False


def _digest(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_text())["digest"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _new(plan: RacePlan, runs: Path) -> RaceFolder:
    stem = f"{slug(plan.suite.name)}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    path, number = runs / stem, 1
    while path.exists():
        number += 1
        path = runs / f"{stem}-{number}"
    path.mkdir(parents=True)
    told = {
        "digest": plan.digest,
        "created": _now(),
        "suite": plan.suite.model_dump(mode="json", exclude_unset=True),
        "script": list(plan.script),
        "cells": [cell.name for cell in plan.cells],
    }
    write(path / "race.plan", json.dumps(redacted(told, secrets_of(os.environ)), indent=1) + "\n")
    return RaceFolder(path)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
