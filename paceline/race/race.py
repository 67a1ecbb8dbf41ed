"""Run a race: fresh processes in interleaved order, so that slow minutes affect all contenders alike.

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

from paceline.errors import PacelineError
from paceline.measure.measure import WATCHED, measure
from paceline.measure.places import places_of
from paceline.measure.record.record import Record, read, write
from paceline.measure.stats.intervals import Interval
from paceline.race.folder import RaceFolder
from paceline.race.keep import efficiency_of
from paceline.race.plan import BASELINE, Cell, Entry, Heat, RacePlan
from paceline.race.results.fields import Field
from paceline.race.results.standing import CHANGES, SAME, Standing, same_work
from paceline.run.compose.compose import axes_of
from paceline.run.run import Run

Measure = Callable[[Cell], tuple[Record, list[list[Any]]]]


class Watcher(Protocol):
    """An observer of a race, such as the terminal."""

    def began(self, race: Race, cell: Cell) -> None: ...

    def ended(self, race: Race, cell: Cell, record: Record) -> None: ...


class Nobody:
    def began(self, race: Race, cell: Cell) -> None:
        pass

    def ended(self, race: Race, cell: Cell, record: Record) -> None:
        pass


@dataclass
class Race:
    """A plan and the records of its cells so far."""

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
        """Return the number of rounds in which every cell has finished."""
        left = [cell.round for cell in self.plan.cells if cell.name not in self.records]
        return min(left, default=self.plan.suite.rounds + 1) - 1

    @property
    def failures(self) -> list[tuple[Cell, Record]]:
        pairs = [(cell, self.records[cell.name]) for cell in self.plan.cells if cell.name in self.records]
        return [(cell, record) for cell, record in pairs if record.verdict == "failed"]

    def standing(self, heat: Heat, label: str) -> Standing | None:
        """Return a contender of a heat with the records of its successful rounds, or None without one."""
        entry = next(entry for entry in self.plan.entries if (entry.heat, entry.label) == (heat, label))
        records = [self.records[cell.name] for cell in self.cells_of(heat, label) if cell.name in self.records]
        ended = tuple(record for record in records if record.verdict != "failed")
        group = SAME if entry.same_result else CHANGES
        return Standing(label, heat.workers, ended[-1].kind, group, ended) if ended else None

    def cells_of(self, heat: Heat, label: str) -> list[Cell]:
        """The cells of one contender, by round."""
        return sorted((cell for cell in self.plan.cells if cell.key == (heat, label)), key=lambda cell: cell.round)

    def entries(self, heat: Heat) -> list[Entry]:
        """The contenders of a heat, its baseline first."""
        alone = self.plan.baseline_of(heat)
        baseline = [entry for entry in self.plan.entries if (entry.heat, entry.label) == alone]
        return [*baseline, *(entry for entry in self.plan.entries_of(heat) if entry.label != BASELINE)]

    def field_of(self, heat: Heat) -> Field:
        """The contenders of a heat, and its baseline, that ended well at least once."""
        entries = self.entries(heat)
        standings = (self.standing(entry.heat, entry.label) for entry in entries)
        return Field(tuple(standing for standing in standings if standing is not None), entries[-1].run)

    def baseline(self, heat: Heat) -> Standing | None:
        """The one worker that contenders of a heat are compared with."""
        return self.standing(*self.plan.baseline_of(heat))

    def speedup(self, entry: Entry) -> Interval | None:
        """Return the ratio to one worker, round by round, or None if the work of one worker differs or is unknown."""
        alone, standing = self.baseline(entry.heat), self.standing(entry.heat, entry.label)
        if alone is None or standing is None or not same_work(standing, alone):
            return None
        return standing.round_ratio(alone)

    def seconds_left(self) -> float | None:
        """Return an estimate of the seconds that the remaining cells will take."""
        if not self.seconds:
            return None
        return self._expected([cell for cell in self.plan.cells if cell.name not in self.records])

    def seconds_of_round(self, number: int) -> float:
        """Return an estimate of the seconds of a round; 0 if nothing is known yet."""
        return self._expected([cell for cell in self.plan.cells if cell.round == number])

    def _expected(self, cells: Sequence[Cell]) -> float:
        """Estimate by earlier cells of the same contender, without the first, which may have had more to do."""
        times: dict[Any, list[float]] = {}
        for cell in self.plan.cells:
            if cell.name in self.seconds:
                times.setdefault(cell.key, []).append(self.seconds[cell.name])
        known = {key: fmean(seconds[1:] or seconds) for key, seconds in times.items()}
        usual = fmean(known.values()) if known else 0.0
        return sum(known.get(cell.key, usual) for cell in cells)

    @property
    def rounds_in_time(self) -> int | None:
        """Return the number of rounds that fit into the time limit, or None without a limit or an estimate."""
        minutes, done = self.plan.suite.minutes, self.rounds
        if minutes is None or not self.seconds:
            return None
        ends = accumulate(map(self.seconds_of_round, range(done + 1, self.plan.suite.rounds + 1)), initial=self.elapsed)
        return done + sum(end <= 60 * minutes for end in list(ends)[1:])

    @property
    def minutes_needed(self) -> int:
        """Return the minutes that all rounds need, with a tenth to spare."""
        return math.ceil(1.1 * self._expected(self.plan.cells) / 60)


def check_places(plan: RacePlan) -> None:
    """Raise before the first cell if the machine cannot provide a lab or a share of a core."""
    places = {(run.lab, run.cpus): run for run in (entry.run for entry in plan.entries) if run.lab or run.cpus}
    for run in places.values():
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
    """Run every cell that has no record yet, then add the efficiency to the records of successful cells.

    With `retry`, whole rounds with a failed cell run again, because ratios are taken within a round.
    """
    watcher, measured = watcher or Nobody(), measured or Measured()
    result = Race(plan, folder)
    with folder.alone():
        folder.fail_killed(plan)
        again = folder.incomplete(plan) if retry else set()
        if retry:
            folder.reopen()
        _keep_records(result, [cell for cell in plan.cells if cell.round not in again])
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
        _keep_records(
            result, [cell for cell in plan.cells if cell.round in again]
        )  # these did not run again for lack of time
        _add_efficiency(result)
        folder.finish()
    return result


def _keep_records(result: Race, cells: Sequence[Cell]) -> None:
    for cell in cells:
        record = result.folder.record_of(cell)
        if record is not None:
            result.records[cell.name] = record


class Measured:
    """Measure cells, and cache the cost of a sample of each workload; `watched` as in `measure`."""

    def __init__(self, *, watched: int = WATCHED) -> None:
        self._watched = watched
        self._flops: dict[tuple[Any, ...], int] = {}

    def __call__(self, cell: Cell) -> tuple[Record, list[list[Any]]]:
        run = cell.run
        workload = (run.model, run.classes, run.image_size, run.sequence_length)
        # The last step is never crossed, so a few watched steps would not show a schedule that crosses the step.
        watched = WATCHED if _crosses_step(run) else self._watched
        record, events = measure(run, lambda *_: None, flops=self._flops.get(workload), watched=watched)
        flops = record.resources.get("flops")
        if flops and (counted := flops.get("per_sample")):
            self._flops[workload] = int(counted)
        return record, events


def _crosses_step(run: Run) -> bool:
    return run.reference is None and bool(axes_of(run).schedule.crosses_step)


def _run(cell: Cell, folder: RaceFolder, measured: Measure) -> Record:
    """Run one cell; its record holds the result or the failure."""
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
    """Return whether the cell's round would run past the time limit; the first round always runs."""
    minutes, first = result.plan.suite.minutes, cell.round == 1
    begins = not any(c.round == cell.round and c.name in result.records for c in result.plan.cells)
    if minutes is None or first or not begins:
        return False
    return result.elapsed + result.seconds_of_round(cell.round) > 60 * minutes


def _add_efficiency(result: Race) -> None:
    """Add the efficiency to each record: an interval over rounds, each against the baseline of its own round."""
    for entry in result.plan.entries:
        if entry.label == BASELINE:
            continue
        standing, alone = result.standing(entry.heat, entry.label), result.baseline(entry.heat)
        speedup = result.speedup(entry)
        if standing is None or alone is None or speedup is None:
            continue
        ended, turns = {record.id for record in standing.records}, {record.turn: record.id for record in alone.records}
        for cell in result.cells_of(entry.heat, entry.label):
            record = result.records.get(cell.name)
            if record is not None and record.id in ended and record.turn in turns:
                efficiency = efficiency_of(speedup, entry.heat.workers, turns[record.turn])
                result.records[cell.name] = _with_efficiency(result.folder.record_path(cell), efficiency)


def _with_efficiency(path: Path, efficiency: dict[str, Any]) -> Record:
    record = read(path).model_copy(update={"efficiency": efficiency})
    write(path, record.to_json())
    return record
