"""Several configurations side by side: fresh processes, interleaved, so that slow minutes hit all of them alike.

round 1:  ddp  limit  one worker  allreduce      round 2:  limit  allreduce  ddp  one worker      ...
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from paceline.compose import axes_of
from paceline.errors import PacelineError
from paceline.jobs.cells import BASELINE, Cell, Heat, RacePlan
from paceline.jobs.keep import efficiency_of
from paceline.jobs.measure import WATCHED, measure
from paceline.jobs.places import places_of
from paceline.jobs.racefolder import RaceFolder
from paceline.jobs.standing import Standing
from paceline.record import Record, read, write
from paceline.run import Run

Measure = Callable[[Cell], tuple[Record, list[list[Any]]]]


class Watcher(Protocol):
    """Who looks on: a terminal, or nobody."""

    def began(self, race: Race, cell: Cell) -> None: ...

    def ended(self, race: Race, cell: Cell, record: Record) -> None: ...


class Nobody:
    def began(self, race: Race, cell: Cell) -> None:
        pass

    def ended(self, race: Race, cell: Cell, record: Record) -> None:
        pass


@dataclass
class Race:
    """A plan and what its cells have shown so far."""

    plan: RacePlan
    folder: RaceFolder
    records: dict[str, Record] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    elapsed: float = 0.0
    kept: int = 0
    cut_short: bool = False

    @property
    def done(self) -> int:
        return len(self.records)

    @property
    def rounds(self) -> int:
        """Rounds of which every cell has ended."""
        left = [cell.round for cell in self.plan.cells if cell.name not in self.records]
        return min(left, default=self.plan.suite.rounds + 1) - 1

    @property
    def failures(self) -> list[tuple[Cell, Record]]:
        pairs = [(cell, self.records[cell.name]) for cell in self.plan.cells if cell.name in self.records]
        return [(cell, record) for cell, record in pairs if record.verdict == "failed"]

    def standing(self, heat: Heat, label: str) -> Standing:
        found = {
            cell.round: self.records[cell.name]
            for cell in self.plan.cells
            if cell.key == (heat, label) and cell.name in self.records
        }
        entry = next(entry for entry in self.plan.entries if (entry.heat, entry.label) == (heat, label))
        return Standing(entry, {number: record for number, record in found.items() if record.verdict != "failed"})

    def baseline(self, heat: Heat) -> Standing:
        return self.standing(*self.plan.baseline_of(heat))

    def standings(self, heat: Heat) -> list[Standing]:
        """The contenders of a heat, its baseline first."""
        labels = [entry.label for entry in self.plan.entries_of(heat) if entry.label != BASELINE]
        return [self.baseline(heat), *(self.standing(heat, label) for label in labels)]

    def seconds_left(self) -> float | None:
        """What the cells to come will take, as far as those before tell."""
        if not self.seconds:
            return None
        return self._expected([cell for cell in self.plan.cells if cell.name not in self.records])

    def seconds_of_round(self, number: int) -> float:
        """What a round will take; 0 where nothing is known yet."""
        return self._expected([cell for cell in self.plan.cells if cell.round == number])

    def _expected(self, cells: Sequence[Cell]) -> float:
        """By the cells of the same contender before; the first of them may have had more to do."""
        times: dict[Any, list[float]] = {}
        for cell in self.plan.cells:
            if cell.name in self.seconds:
                times.setdefault(cell.key, []).append(self.seconds[cell.name])
        known = {key: fmean(found[1:] or found) for key, found in times.items()}
        usual = fmean(known.values()) if known else 0.0
        return sum(known.get(cell.key, usual) for cell in cells)

    @property
    def rounds_in_time(self) -> int | None:
        """How many rounds there will be when the minutes are over; None where there is no limit or nothing is known."""
        minutes, done = self.plan.suite.minutes, self.rounds
        if minutes is None or not self.seconds:
            return None
        ends = accumulate(map(self.seconds_of_round, range(done + 1, self.plan.suite.rounds + 1)), initial=self.elapsed)
        return done + sum(end <= 60 * minutes for end in list(ends)[1:])

    @property
    def minutes_needed(self) -> int:
        """In which all rounds would surely have run, a tenth to spare."""
        return math.ceil(1.1 * self._expected(self.plan.cells) / 60)


def check_places(plan: RacePlan) -> None:
    """Refuse before the first cell what the machine cannot offer: a lab, or a share of a core."""
    asked = {(run.lab, run.cpus): run for run in (entry.run for entry in plan.entries) if run.lab or run.cpus}
    for run in asked.values():
        with places_of(run):
            pass


def race(
    plan: RacePlan,
    folder: RaceFolder,
    *,
    measured: Measure | None = None,
    watcher: Watcher | None = None,
    retry: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Race:
    """Run every cell that has no record yet; then put efficiency into the records of those that ended well.

    With `retry`, rounds with a failed cell run again as a whole, because ratios are taken within a round.
    """
    watcher, measured = watcher or Nobody(), measured or Measured()
    result = Race(plan, folder)
    with folder.alone():
        folder.bury(plan)
        again = folder.incomplete(plan) if retry else set()
        if retry:
            folder.reopen()
        _keep_found(result, [cell for cell in plan.cells if cell.round not in again])
        result.kept = result.done
        began = clock()
        for cell in plan.cells:
            if cell.name in result.records:
                continue
            if _no_time(result, cell):
                result.cut_short = True
                break
            if cell.round in again:
                folder.set_aside(plan, cell.round)
                again.remove(cell.round)
            watcher.began(result, cell)
            start = clock()
            record = _run(cell, folder, measured)
            result.records[cell.name], result.seconds[cell.name] = record, clock() - start
            result.elapsed = clock() - began
            watcher.ended(result, cell, record)
        _keep_found(result, [cell for cell in plan.cells if cell.round in again])  # no time was left for them
        _add_efficiency(result)
        folder.finish()
    return result


def _keep_found(result: Race, cells: Sequence[Cell]) -> None:
    for cell in cells:
        record = result.folder.found(cell)
        if record is not None:
            result.records[cell.name] = record


class Measured:
    """Measures cells, and remembers what a sample of each workload costs; `watched` as in `measure`."""

    def __init__(self, *, watched: int = WATCHED) -> None:
        self._watched = watched
        self._flops: dict[tuple[Any, ...], int] = {}

    def __call__(self, cell: Cell) -> tuple[Record, list[list[Any]]]:
        run = cell.run
        workload = (run.model, run.classes, run.image_size, run.sequence_length)
        watched = WATCHED if _crosses_step(run) else self._watched  # nothing crosses the last step, or a single one
        record, events = measure(run, lambda *_: None, flops=self._flops.get(workload), watched=watched)
        counted = record.resources["flops"]["per_sample"]
        if counted:
            self._flops[workload] = counted
        return record, events


def _crosses_step(run: Run) -> bool:
    return run.reference is None and bool(axes_of(run).schedule.crosses_step)


def _run(cell: Cell, folder: RaceFolder, measured: Measure) -> Record:
    """One cell; whatever happens to it is in its record."""
    folder.begin(cell)
    try:
        record, events = measured(cell)
    except PacelineError as problem:
        return folder.fail(cell, str(problem))
    except BaseException as problem:
        folder.fail(cell, f"the race was stopped while this cell was under way: {problem or type(problem).__name__}")
        raise
    return folder.end(cell, record, events)


def _no_time(result: Race, cell: Cell) -> bool:
    """With a limit of minutes no round starts that would end after it; the first always runs."""
    minutes, first = result.plan.suite.minutes, cell.round == 1
    begins = not any(c.round == cell.round and c.name in result.records for c in result.plan.cells)
    if minutes is None or first or not begins:
        return False
    return result.elapsed + result.seconds_of_round(cell.round) > 60 * minutes


def _add_efficiency(result: Race) -> None:
    """Each record learns how its contender scales: the interval is over rounds, the baseline is of its own round."""
    for entry in result.plan.entries:
        if entry.label == BASELINE:
            continue
        standing, alone = result.standing(entry.heat, entry.label), result.baseline(entry.heat)
        speedup = standing.speedup(alone)
        for cell in result.plan.cells:
            if speedup is None or cell.key != (entry.heat, entry.label):
                continue
            mine, base = standing.records.get(cell.round), alone.records.get(cell.round)
            if mine is not None and base is not None and mine.turn == base.turn:
                found = efficiency_of(speedup, entry.heat.workers, base.id)
                result.records[cell.name] = _with_efficiency(result.folder.record_path(cell), found)


def _with_efficiency(path: Path, found: dict[str, Any]) -> Record:
    record = read(path).model_copy(update={"efficiency": found})
    write(path, record.to_json())
    return record
