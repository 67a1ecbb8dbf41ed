"""The folder of a race: its plan, one record per cell, and a mark for the cell that is running.

    runs/race-20261115-230042/
      race.plan                             the plan; by its digest a restart recognizes the same race
      race.done                             exists once the race is complete
      race.apart                            contenders that could not take turns, each with the reason
      mobilenet_v2-2x64-ddp-2-round1.json   a finished cell, or a failed one, with its events beside it
      ...-round2.started                    the cells of a start have these marks until all their records are written

A restart keeps every finished start byte for byte. A start that was torn, because a mark is left and a record is
missing, runs again; its records are renamed to `....torn-ID`. A damaged record is renamed to `....damaged-TIME`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from paceline.errors import WrongCommand
from paceline.files.read import read_text
from paceline.files.redact import redacted, secrets_of
from paceline.measure.combining import failed_record
from paceline.measure.record.events import events_of
from paceline.measure.record.record import Record, read, write
from paceline.race.cells import Cell, Start
from paceline.race.keep import save
from paceline.race.plan import RacePlan, slug
from paceline.race.script_record import command_of, run_of

Result = tuple[Record, list[list[Any]]]  # the result of one cell: a record and its events


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

    def begin(self, start: Start) -> None:
        names = [cell.name for cell in start.cells]
        mark = json.dumps({"pid": os.getpid(), "time": _now(), "start": names}) + "\n"
        for cell in start.cells:
            write(self._mark(cell), mark)

    def end(self, start: Start, results: Sequence[Result], known: Mapping[str, Any]) -> list[Record]:
        """Write the records, then remove the marks. The facts about the start in `known` are added to the records."""
        mates = [cell.label for cell in start.cells]
        records = []
        for cell, (record, events) in zip(start.cells, results, strict=True):
            race = {
                "name": self.path.name,
                "round": cell.round,
                "sitting": self.sitting,
                "label": cell.label,
                "heat": cell.title,
                "same_result": cell.same_result,
                "shared": start.shared,
                "mates": [label for label in mates if label != cell.label],
                **known,
            }
            records.append(save(record.model_copy(update={"race": race}), events, self.record_path(cell)))
        self.forget(start)
        return records

    def forget(self, start: Start) -> None:
        """Remove the marks of a start."""
        for cell in start.cells:
            self._mark(cell).unlink(missing_ok=True)

    def failure_of(self, cell: Cell, why: str) -> Result:
        run = run_of(cell.script, cell.run) if cell.script else cell.run
        text = command_of(cell.script, cell.run) if cell.script else None
        return failed_record(run, why, text=text), []

    def repair(self, plan: RacePlan) -> list[Cell]:
        """Rename damaged records and the files of torn starts, so that their cells run again. Return the torn cells."""
        for path, _ in self.damaged(plan):
            path.rename(path.with_suffix(f".damaged-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"))
        marked = [cell for cell in plan.cells if self._mark(cell).exists()]
        torn = {name for cell in marked for name in self._torn(cell)}
        for cell in marked:
            if cell.name in torn:
                self._rename(cell, "torn")
            self._mark(cell).unlink(missing_ok=True)
        return [cell for cell in marked if cell.name in torn]

    def _torn(self, cell: Cell) -> list[str]:
        """Return the names of all cells of a start that lacks a record. The mark of any of its cells lists them."""
        try:
            names = [str(name) for name in json.loads(read_text(self._mark(cell))).get("start") or [cell.name]]
        except (WrongCommand, ValueError, AttributeError, RecursionError):
            names = [cell.name]
        whole = all((self.path / f"{Path(name).name}.json").exists() for name in names)
        return [] if whole else names

    @property
    def apart(self) -> dict[str, str]:
        """Return the contenders that could not take turns in an earlier sitting, each with the reason."""
        try:
            reasons = json.loads(read_text(self.path / "race.apart"))
            return {str(key): str(why) for key, why in reasons.items()}
        except (WrongCommand, ValueError, AttributeError, RecursionError):
            return {}

    def keep_apart(self, reasons: Mapping[str, str]) -> None:
        write(self.path / "race.apart", json.dumps(redacted(dict(reasons), secrets_of(os.environ)), indent=1) + "\n")

    def incomplete(self, plan: RacePlan) -> set[int]:
        """Return the rounds without usable ratios: a cell failed or never ran, or the round was interrupted.

        In a race without a fixed number of rounds, contenders may leave early. Cells that were never due do not count.
        """
        records = [(cell, self.record_of(cell)) for cell in plan.cells]
        failed = {cell.round for cell, record in records if record is not None and record.verdict == "failed"}
        absent = {cell.round for cell, record in records if record is None and not plan.suite.until_sure}
        turns = {(cell.round, record.turn) for cell, record in records if record is not None and cell.alone}
        return failed | absent | {number for number, _ in turns if sum(number == each for each, _ in turns) > 1}

    def reopen(self) -> None:
        (self.path / "race.done").unlink(missing_ok=True)

    def set_aside(self, cells: Iterable[Cell]) -> None:
        """Rename the files of cells that are about to run again."""
        for cell in cells:
            record = self.record_of(cell)
            if record is not None:
                self._rename(cell, "failed" if record.verdict == "failed" else "earlier")

    def _rename(self, cell: Cell, kind: str) -> None:
        """Rename the record of a cell and its events, if there are any."""
        record = self.record_of(cell)
        if record is None:
            return
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
