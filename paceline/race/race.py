"""Run a race: add starts until every contender has won, lost or tied, or until the time is used up.

    round 1   [ one worker ]   [ ddp | allreduce | limit, in turns ]   [ a contender with servers of its own ]
    round 2                    [ ... ]                                 [ ... ]
    ...       after every start: decide who is beaten, who is level, and who needs more starts

Contenders that are surely beaten leave the race. Deciding after every start does not make wrong decisions more
frequent, because the intervals are valid for all starts together (paceline/measure/stats/sequential.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Protocol

from paceline.errors import PacelineError, TurnFailed
from paceline.measure.places import places_of
from paceline.measure.record.record import Record
from paceline.measure.stats.intervals import Interval
from paceline.race.cells import BASELINE, Cell, Entry, Heat, Start, starts_of
from paceline.race.folder import RaceFolder, Result
from paceline.race.keep import efficiency_of
from paceline.race.measured import Measured, Measurer
from paceline.race.pacing import next_seconds
from paceline.race.plan import RacePlan
from paceline.race.results.fields import Field
from paceline.race.results.standing import CHANGES, SAME, Standing, same_work
from paceline.race.results.verdict import Verdict, verdict
from paceline.race.weighing import Weighing
from paceline.run.reference import DDP

Key = tuple[Heat, str]  # identifies a contender


class Watcher(Protocol):
    """An observer of a race, such as the terminal."""

    def began(self, race: Race, start: Start) -> None: ...

    def progress(self, race: Race, start: Start, line: str) -> None: ...

    def ended(self, race: Race, start: Start) -> None: ...

    def noted(self, race: Race, text: str) -> None: ...


class Nobody:
    def began(self, race: Race, start: Start) -> None:
        pass

    def progress(self, race: Race, start: Start, line: str) -> None:
        pass

    def ended(self, race: Race, start: Start) -> None:
        pass

    def noted(self, race: Race, text: str) -> None:
        pass


@dataclass
class Race:
    """A plan and the records of its cells so far."""

    plan: RacePlan
    folder: RaceFolder
    records: dict[str, Record] = field(default_factory=dict)
    seconds: dict[tuple[Heat, str], list[float]] = field(default_factory=dict)  # seconds of each start in this sitting
    elapsed: dict[Heat, float] = field(default_factory=dict)
    apart: dict[Key, str] = field(default_factory=dict)  # contenders that could not take turns, with the reason
    kept: int = 0
    late: set[Heat] = field(default_factory=set)  # heats without time for another round

    @property
    def done(self) -> int:
        return len(self.records)

    @property
    def cut_short(self) -> bool:
        """Return whether time ran out before all rounds were done, or before the race was decided."""
        return bool(self.late)

    @property
    def rounds(self) -> int:
        """Return how many rounds have all their cells finished; if the number of rounds is open, how many began."""
        if self.plan.suite.until_sure:
            return max((cell.round for cell in self.plan.cells if cell.name in self.records), default=0)
        left = [cell.round for cell in self.plan.cells if cell.name not in self.records]
        return min(left, default=self.plan.rounds + 1) - 1

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
        """Return the cells of one contender, by round."""
        return self.plan.cells_by_key.get((heat, label), [])

    def entries(self, heat: Heat) -> list[Entry]:
        """Return the contenders of a heat, the baseline first."""
        alone = self.plan.baseline_of(heat)
        baseline = [entry for entry in self.plan.entries if (entry.heat, entry.label) == alone]
        return [*baseline, *(entry for entry in self.plan.entries_of(heat) if entry.label != BASELINE)]

    def field_of(self, heat: Heat) -> Field:
        """Return the contenders and the baseline of a heat that ended well at least once."""
        entries = self.entries(heat)
        standings = (self.standing(entry.heat, entry.label) for entry in entries)
        return Field(tuple(standing for standing in standings if standing is not None), entries[-1].run)

    def verdict(self, heat: Heat) -> Verdict:
        """Return the verdict about a heat from the records so far."""
        return verdict(self.field_of(heat), heat.workers)

    def baseline(self, heat: Heat) -> Standing | None:
        """Return the one-worker run that contenders of a heat are compared with."""
        return self.standing(*self.plan.baseline_of(heat))

    def speedup(self, entry: Entry) -> Interval | None:
        """Return the ratio to one worker, or None if the work of one worker differs or is unknown."""
        alone, standing = self.baseline(entry.heat), self.standing(entry.heat, entry.label)
        if alone is None or standing is None or not same_work(standing, alone):
            return None
        return standing.beside(alone)

    # remaining cells -------------------------------------------------------------------------

    def is_out(self, key: Key) -> bool:
        """Return whether a contender is not started again: all its runs failed, or it is surely beaten."""
        records = [self.records[cell.name] for cell in self.cells_of(*key) if cell.name in self.records]
        if records and all(record.verdict == "failed" for record in records):
            return True
        return self.plan.suite.until_sure and key[1] in self._beaten(key[0])

    def _beaten(self, heat: Heat) -> Sequence[str]:
        """Return the contenders that are surely slower than another; ddp stays until the ratio to it is known well."""
        contenders = self.field_of(heat).at(heat.workers)
        beaten = self.verdict(heat).beaten if contenders else ()
        return beaten if self._is_precise(heat) else [label for label in beaten if label != DDP.name]

    def _is_precise(self, heat: Heat) -> bool:
        """Return whether the ratio of the best contender to ddp is known well, where both take turns."""
        best, ddp = self.verdict(heat).best, self.standing(heat, DDP.name) if self._has_ddp(heat) else None
        standing = self.standing(heat, best) if best not in (None, DDP.name) else None
        if standing is None or ddp is None or not (standing.last.race.get("shared") and ddp.last.race.get("shared")):
            return True
        ratio = standing.against(ddp)
        wide = math.inf if ratio.low is None or ratio.high is None else (ratio.high - ratio.low) / (2 * ratio.centre)
        return wide <= self.plan.suite.half_width / 100

    def _has_ddp(self, heat: Heat) -> bool:
        return any(entry.label == DDP.name for entry in self.plan.entries_of(heat))

    def is_decided(self, heat: Heat) -> bool:
        """Return whether more starts of a heat would change nothing."""
        if not self.plan.suite.until_sure:
            return False
        racing = [entry for entry in self.plan.entries_of(heat) if entry.label != BASELINE]
        unknown = [entry for entry in racing if self.standing(heat, entry.label) is None]
        if any(not self.is_out((heat, entry.label)) for entry in unknown):
            return False
        if len(unknown) == len(racing):
            return True
        judged = self.verdict(heat)
        return judged.end in ("wins", "level", "alone", "none") and not judged.undecided and self._is_precise(heat)

    def todo(self, number: int) -> list[Cell]:
        """Return the cells of a round that still take part and have no record."""
        decided = {heat: self.is_decided(heat) for heat in self.plan.heats}
        over = {heat for heat in decided if decided[heat] or heat in self.late}
        cells = [cell for cell in self.plan.cells_in(number) if cell.name not in self.records]
        return [cell for cell in cells if not self._is_over(cell, over) and not self.is_out(cell.key)]

    def _is_over(self, cell: Cell, over: set[Heat]) -> bool:
        """Return whether a cell is no longer needed; a baseline is needed until all heats that use it are over."""
        if cell.label == BASELINE:
            users = [heat for heat in self.plan.heats if self.plan.baseline_of(heat)[0] == cell.heat]
            return all(heat in over for heat in users)
        return cell.heat in over

    # time ---------------------------------------------------------------------------------------

    def expected(self, starts: Sequence[Start]) -> float:
        """Estimate the seconds of starts from the latest: the first has one-time work, and contenders drop out."""
        known = {key: median((seconds[1:] or seconds)[-3:]) for key, seconds in self.seconds.items()}
        usual = fmean(known.values()) if known else 0.0
        return sum(known.get(start.key, usual) for start in starts)

    def seconds_left(self) -> float | None:
        """Return an upper bound of the remaining seconds, by the minutes or the rounds; None if nothing is known."""
        if not self.seconds:
            return None
        minutes, fixed = self.plan.suite.minutes_of_a_heat, self.plan.suite.rounds
        heats = [heat for heat in self.plan.heats if heat not in self.late and not self.is_decided(heat)]
        bounds = []
        if minutes is not None:
            bounds.append(sum(max(0.0, 60 * minutes - self.elapsed.get(heat, 0.0)) for heat in heats))
        if fixed is not None:
            rounds = range(1, fixed + 1)
            bounds.append(sum(self.expected(starts_of(self.todo(number), self.apart)) for number in rounds))
        return min(bounds, default=None)

    def heat_of(self, start: Start) -> Heat:
        """Return the heat whose minutes a start uses. A baseline uses the minutes of the first heat that it serves."""
        if start.cells[0].label != BASELINE:
            return start.heat
        return next(heat for heat in self.plan.heats if self.plan.baseline_of(heat)[0] == start.heat)


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
    measured: Measurer | None = None,
    watcher: Watcher | None = None,
    retry: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Race:
    """Add starts until every heat is decided, its rounds are done, or its time is used up.

    With `retry`, whole rounds with a failed cell run again, because ratios are taken within a round.
    """
    measured = measured or Measured()
    result = Race(plan, folder)
    with folder.alone():
        folder.repair(plan)
        again = folder.incomplete(plan) if retry else set()
        if retry:
            folder.reopen()
        else:
            result.apart = _known_apart(plan, folder)
        _keep_records(result, [cell for cell in plan.cells if cell.round not in again])
        result.kept = result.done
        runner = Runner(result, measured, watcher or Nobody(), clock)
        for number in range(1, plan.rounds + 1):
            if all(heat in result.late or result.is_decided(heat) for heat in plan.heats):
                break
            runner.round(number, fresh=number in again)
        _keep_records(result, [cell for cell in plan.cells if cell.round in again - runner.begun])
        if not plan.suite.until_sure or all(result.is_decided(heat) for heat in plan.heats):
            folder.finish()
    return result


def _known_apart(plan: RacePlan, folder: RaceFolder) -> dict[Key, str]:
    known = folder.apart
    return {cell.key: known[_spoken(cell.key)] for cell in plan.cells_in(1) if _spoken(cell.key) in known}


def _spoken(key: Key) -> str:
    return f"{key[1]}: {key[0]}"


def _keep_records(result: Race, cells: Sequence[Cell]) -> None:
    for cell in cells:
        record = result.folder.record_of(cell)
        if record is not None:
            result.records[cell.name] = record


class Runner:
    """Runs the rounds of a race. `begun` are the rounds that ran at least one start."""

    def __init__(self, result: Race, measured: Measurer, watcher: Watcher, clock: Callable[[], float]) -> None:
        self._race, self._measured, self._watcher, self._clock = result, measured, watcher, clock
        self.begun: set[int] = set()
        self._weighing = Weighing(measured)

    def round(self, number: int, *, fresh: bool = False) -> None:
        """Run the rest of a round, heat by heat in the order of the plan; `fresh` rounds replace their records."""
        race = self._race
        starts = starts_of(race.todo(number), race.apart)
        self._end_heats(starts, number)
        starts = starts_of(race.todo(number), race.apart)
        if starts and fresh:
            race.folder.set_aside(race.plan.cells_in(number))
        for start in starts:
            cells = tuple(cell for cell in start.cells if not race.is_out(cell.key))
            if cells and not race.is_decided(race.heat_of(start)):
                self.begun.add(number)
                self._whole_again(start, number)
                self._run(Start(cells, start.shared))

    def _end_heats(self, starts: Sequence[Start], number: int) -> None:
        """End the heats that would exceed their time limit in this round. The first round always runs."""
        race, minutes = self._race, self._race.plan.suite.minutes_of_a_heat
        if minutes is None or number == 1:
            return
        for heat in race.plan.heats:
            mine = [start for start in starts if race.heat_of(start) == heat]
            torn = any(cell.name in race.records for cell in race.plan.cells_in(number) if cell.heat == heat)
            if mine and not torn and race.elapsed.get(heat, 0.0) + race.expected(mine) > 60 * minutes:
                race.late.add(heat)

    def _whole_again(self, start: Start, number: int) -> None:
        """Set aside the records that a repeated shared start will replace: ratios need records of one start."""
        race = self._race
        if not start.shared:
            return
        mates = [
            c for c in race.plan.cells_in(number) if c.heat == start.heat and c.name in race.records and not c.alone
        ]
        mates = [cell for cell in mates if race.records[cell.name].race.get("shared")]
        race.folder.set_aside(mates)
        for cell in mates:
            del race.records[cell.name]

    def _run(self, start: Start) -> None:
        race = self._race
        self._watcher.began(race, start)
        race.folder.begin(start)
        self._weighing.weigh(start, lambda line: self._watcher.progress(race, start, line))
        began = self._clock()  # weighing uses none of the minutes
        try:
            results = self._weighing.added(start, self._results(start))
        except TurnFailed as problem:
            race.folder.forget(start)
            self._count(start, began)
            self._separate(start, problem)
            return
        seconds = self._count(start, began)
        race.seconds.setdefault(start.key, []).append(seconds)
        records = race.folder.end(start, self._efficient(start, results), self._known(start, seconds))
        race.records |= {cell.name: record for cell, record in zip(start.cells, records, strict=True)}
        self._watcher.ended(race, start)

    def _results(self, start: Start) -> Sequence[Result]:
        """Measure a start; an isolated cell that fails has a record of its failure."""
        race = self._race

        def on_line(rank: int, stream: str, line: str) -> None:
            if rank == 0:
                self._watcher.progress(race, start, line)

        if start.shared:
            field, minutes = race.field_of(start.heat), race.plan.suite.minutes_of_a_heat
            return self._measured.together(start, next_seconds(field, start.heat.workers, minutes), on_line)
        try:
            return [self._measured.alone(start.cells[0], on_line)]
        except PacelineError as problem:
            return [race.folder.failure_of(start.cells[0], str(problem))]

    def _count(self, start: Start, began: float) -> float:
        seconds, heat = self._clock() - began, self._race.heat_of(start)
        self._race.elapsed[heat] = self._race.elapsed.get(heat, 0.0) + seconds
        return seconds

    def _separate(self, start: Start, problem: TurnFailed) -> None:
        """Isolate the contender that failed, or all contenders if it is not known which; then repeat the start."""
        race = self._race
        failed = [cell for cell in start.cells if cell.label == problem.contender] or list(start.cells)
        for cell in failed:
            race.apart[cell.key] = problem.what
        race.folder.keep_apart({_spoken(key): why for key, why in race.apart.items()})
        who = failed[0].label if len(failed) < len(start.cells) else f"contenders of {race.plan.title(start.heat)}"
        what = problem.what.splitlines()[0]
        more = f"; {problem.log}" if problem.log and problem.log not in what else ""
        self._watcher.noted(race, f"{who} from now on in isolated starts: {what}{more}")
        for part in starts_of(start.cells, race.apart):
            self._run(part)

    def _known(self, start: Start, seconds: float) -> dict[str, Any]:
        """Return the facts about a start that the race adds to its records."""
        suite, cell = self._race.plan.suite, start.cells[0]
        known: dict[str, Any] = {"margin": suite.margin, "seconds": seconds}
        if suite.until_sure:
            known["pairs"] = self._race.plan.pairs(start.heat)
        why = self._race.apart.get(cell.key) or cell.alone
        return known if start.shared or not why else {**known, "alone": why.splitlines()[0]}

    def _efficient(self, start: Start, results: Sequence[Result]) -> list[Result]:
        """Add the efficiency to each record, from the baseline so far; a written record is never changed later."""
        alone = self._race.baseline(start.heat)
        if alone is None or start.cells[0].label == BASELINE:
            return list(results)
        return [
            (_with_efficiency(record, cell, alone), events)
            for cell, (record, events) in zip(start.cells, results, strict=True)
        ]


def _with_efficiency(record: Record, cell: Cell, alone: Standing) -> Record:
    if record.verdict == "failed":
        return record
    mine = Standing(cell.label, cell.heat.workers, record.kind, SAME, (record.without_secrets(),))
    if not same_work(mine, alone):
        return record
    speedup = mine.beside(alone)
    return record.model_copy(update={"efficiency": efficiency_of(speedup, cell.heat.workers, alone.last.id)})
