"""A standing is one contender in one setting, with all its fresh starts.

setting (model, batch, ...)  x  workers  x  contender  ->  rate with its interval
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from paceline.errors import PacelineError
from paceline.measure.record.record import Record
from paceline.measure.same_result import has_same_result
from paceline.measure.stats.intervals import ENOUGH, FEWEST, Interval, log_interval, rate_interval
from paceline.measure.stats.pairing import log_ratio
from paceline.measure.stats.sequential import Answer, answer, anytime_quotient, anytime_ratio
from paceline.measure.stats.unpaired import unpaired_ratio
from paceline.race.results.heats import label_of
from paceline.race.results.learning import accuracy_of, updates_of
from paceline.run.compose.compose import axes_of
from paceline.run.fields import Kind
from paceline.run.reference import ReferenceTraits
from paceline.run.run import AXES, Run, fields

# Settings that do not change the question that a run answers.
_ASIDE = {*fields(Kind.STRATEGY, Kind.AXIS, Kind.SIZE, Kind.PLACE, Kind.LENGTH)} - {"profile"}
_SHOWN = {"threads", "model", "image_size", "sequence_length", "batch_size", "global_batch", "accumulate"}
_PLACE = {"lab", "profile"}  # settings that do not change the work of a worker
UPDATES = "step"  # the unit of a script whose samples are not counted
KINDS = ("measured", "replayed", "forecast")  # kinds of records, the most trusted first
MARGIN = 3.0  # percent, if a record has no margin
SAME, CHANGES = "same result as all-reduce", "changes convergence"


def contender(run: Run) -> str:
    """Return the usual name of a strategy, followed by the axes that the run sets."""
    members = [str(getattr(run, axis)) for axis in AXES if getattr(run, axis) is not None]
    words = ([run.strategy] if run.strategy else []) + members
    name = " + ".join(words) or "allreduce"
    return name if run.comm == "auto" else f"{name} over {run.comm}"


def name_of(record: Record) -> str:
    """Return the label of the contender in its race, or else its usual name."""
    return label_of(record) or contender(record.run)


def group(run: Run) -> str:
    """Return the group of a run whose record does not say whether it gives the result of all-reduce."""
    return SAME if has_same_result(run) else CHANGES


def setting(run: Run, environment: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the settings that contenders of one race share; `threads` is the number that a worker really had."""
    values = {k: v for k, v in run.model_dump().items() if k not in _ASIDE}
    values["batch_size"], values["global_batch"] = run.per_worker, None
    values["threads"] = run.threads or _threads(environment, run.workers)
    return tuple(sorted((key, str(value)) for key, value in values.items()))


def _threads(environment: Mapping[str, Any], workers: int) -> int:
    """Threads of a worker without --threads: OMP_NUM_THREADS of its environment, else cores / workers."""
    threads = str((environment.get("variables") or {}).get("OMP_NUM_THREADS", ""))
    return int(threads) if threads.isdigit() else max(1, int(environment.get("cores") or 1) // max(1, workers))


def spoken_setting(run: Run, unit: str = "") -> str:
    """Return the setting in a few words. The batch size is left out if the rate counts updates instead of samples."""
    parts = [run.model]
    if run.image_size:
        parts.append(f"{run.image_size} x {run.image_size}")
    if run.sequence_length:
        parts.append(f"{run.sequence_length} tokens")
    if unit != UPDATES:
        parts.append(f"batch {run.per_worker} per worker")
    if run.accumulate > 1:
        parts.append(f"{run.accumulate} backwards per update")
    rest = run.model_dump(exclude=_ASIDE | _SHOWN, exclude_defaults=True)
    return ", ".join(parts + [f"{k.replace('_', ' ')} {v}" for k, v in rest.items()])


def rate_of(record: Record) -> float | None:
    """Return the samples per second of the whole job, or None for a run that failed."""
    total = record.rate.get("total")
    return total["mean"] if total else None


def inside(record: Record) -> list[float]:
    """Return the rate of every repeat inside one set of processes."""
    total = record.rate.get("total")
    return list(total.get("repeats", [])) if total else []


def start_ratio(mine: Record, theirs: Record) -> float:
    """Return the logarithm of the ratio of two rates; in a shared start it is taken over the turns that both took."""
    turns = [inside(record) for record in (mine, theirs)]
    if mine.race.get("shared") and theirs.race.get("shared") and len(turns[0]) == len(turns[1]) > 0:
        return log_ratio(turns[1], turns[0])  # rates, not seconds
    return math.log((rate_of(mine) or 1.0) / (rate_of(theirs) or 1.0))


@dataclass(frozen=True)
class Standing:
    """The results of one contender with one number of workers; `records` has one record per start, oldest first."""

    name: str
    workers: int
    kind: str
    group: str
    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        return self.records[0]

    @property
    def last(self) -> Record:
        return self.records[-1]

    @property
    def label(self) -> str:
        """The name, with the kind if the rate was not measured."""
        return self.name if self.kind == "measured" else f"{self.name} ({self.kind})"

    @property
    def reference(self) -> ReferenceTraits | None:
        """The traits of limit or ddp, even if settings follow its name; None for a strategy."""
        return self.first.run.reference

    @property
    def waits_in_backward(self) -> bool:
        """Whether it waits inside backward, as DDP does, so that its breakdown has no time for waiting."""
        return self.reference is not None and self.reference.waits_in_backward

    @property
    def topology(self) -> Any:
        """The topology that its ranks average over; None without one, or if this version cannot compose the run."""
        run = self.first.run
        try:
            return None if run.reference else axes_of(run).topology
        except PacelineError:
            return None

    @cached_property
    def rates(self) -> list[float]:
        return [rate for record in self.records if (rate := rate_of(record)) is not None]

    @cached_property
    def rate(self) -> Interval:
        """The rate over starts. Three or more starts give an interval over starts.

        A single plain run has one over its steps.
        """
        if len(self.rates) > 1 or self.first.race:
            return rate_interval(self.rates)
        total = self.first.rate["total"]
        return Interval(self.rates[0], total.get("low"), total.get("high"), total.get("confidence", 0.95))

    @property
    def over(self) -> str:
        """The unit that the interval is computed over, in words."""
        count, steps = len(self.rates), self.first.rate["total"].get("steps")
        if count > 1:
            return f"{count} fresh starts"
        return f"{steps} steps of one start" if steps else f"{len(inside(self.first)) or 1} repeats of one start"

    @cached_property
    def _turns(self) -> dict[Any, Record]:
        pairs = ((record.turn, record) for record in self.records if rate_of(record) is not None)
        return {turn: record for turn, record in pairs if turn is not None}

    @cached_property
    def races(self) -> Counter[str]:
        """The number of rounds in each race."""
        return Counter(turn[0] for turn in self._turns)

    @property
    def pairs(self) -> int | None:
        """The number of comparisons that share the error of the race, or None if the race had fixed rounds."""
        return self.last.race.get("pairs")

    def paired(self, rival: Standing) -> list[tuple[Record, Record]]:
        """Return the pairs of records from rounds in which both ran, so that both saw the same slow minutes."""
        mine, theirs = self._turns, rival._turns
        return [(mine[turn], theirs[turn]) for turn in mine if turn in theirs]

    def logs_against(self, rival: Standing) -> list[float]:
        """Return the log ratio of each common round; in a shared start, over the turns that both took."""
        return [start_ratio(*pair) for pair in self.paired(rival)]

    def against(self, rival: Standing) -> Interval:
        """Return the ratio of rates, paired by round if both ran in the same rounds of a race.

        Terminal, page and --json show this one. Nothing is decided about the limit: its interval is of one look.
        """
        logs = self._together(rival)
        if any(one is not None and one.is_bound for one in (self.reference, rival.reference)):
            return log_interval(logs) if logs else self.beside(rival)
        if logs:
            return self._interval(logs)
        if self.pairs is not None and rival.pairs is not None:
            mine, theirs = ([math.log(rate) for rate in side.rates] for side in (self, rival))
            return anytime_quotient(mine, theirs, self.pairs)
        return self.beside(rival)

    def beside(self, rival: Standing) -> Interval:
        """Return the ratio with an ordinary t interval, for figures that no decision depends on."""
        logs, starts = self.logs_against(rival), min(len(self.rates), len(rival.rates))
        if len(logs) > 1:
            return log_interval(logs)
        if starts < FEWEST and self.first.race:
            return Interval(fmean(self.rates) / fmean(rival.rates), None, None)
        return unpaired_ratio(self.samples, rival.samples)

    def _interval(self, logs: Sequence[float]) -> Interval:
        """Return bounds that hold after every start if the race decides after every start; else a t interval."""
        if self.pairs is not None:
            return anytime_ratio(logs, self.pairs)
        return log_interval(logs)

    def _together(self, rival: Standing) -> list[float]:
        """Return the rounds that both have if a ratio should use them.

        A single round counts only if one side has no other start.
        """
        logs, starts = self.logs_against(rival), (len(self.rates), len(rival.rates))
        alone = min(starts) == 1 < max(starts) or self.pairs is not None
        return logs if len(logs) > 1 or alone else []

    def starts_against(self, rival: Standing) -> int:
        """Return the number of starts of each side that the ratio uses."""
        return len(self._together(rival)) or min(len(self.rates), len(rival.rates))

    def answer(self, rival: Standing) -> Answer:
        """Return whether it is surely faster, surely slower, level within the margin, or not decided yet."""
        if self.pairs is None and self.starts_against(rival) < ENOUGH:
            return "open"
        return answer(self.against(rival), self.margin / 100)

    @property
    def margin(self) -> float:
        """The difference in percent below which two contenders are level, if it is surely smaller."""
        return float(self.last.race.get("margin", MARGIN))

    def beats(self, rival: Standing) -> bool:
        """Return whether it is surely faster, with enough starts to say so."""
        return self.answer(rival) == "faster"

    @property
    def samples(self) -> list[float]:
        return self.rates if len(self.rates) > 1 else inside(self.first) or self.rates

    @cached_property
    def accuracy(self) -> float | None:
        """The accuracy on the test part at the end, the mean over the starts that trained longest."""
        longest = [record for record in self.records if updates_of(record) == self.updates]
        ends = [grades[-1] for record in longest if (grades := accuracy_of(record))]
        return fmean(ends) if ends else None

    @cached_property
    def loss(self) -> float | None:
        """The mean of the last three training losses, over starts."""
        ends = [fmean(record.loss[-3:]) for record in self.records if record.loss]
        return fmean(ends) if ends else None

    @property
    def updates(self) -> int:
        """The number of updates of one start after which its accuracy was reached."""
        return max(map(updates_of, self.records), default=0)

    @cached_property
    def work(self) -> dict[str, str]:
        """The work of one worker."""
        return {k: v for k, v in setting(self.first.run, self.first.environment) if k not in _PLACE}


def same_work(standing: Standing, alone: Standing) -> bool:
    """Return whether a worker does the same work as one worker alone; unknown if a script makes its own batches."""
    return UPDATES not in (standing.first.unit, alone.first.unit) and standing.work == alone.work


PARTS = ("data", "forward", "backward", "exposed", "update", "other")  # parts of a step, in the order of reports


def mean_parts(standing: Standing) -> dict[str, float]:
    """Return the seconds of each part, the mean over all starts that recorded it."""
    timed = [record.breakdown for record in standing.records if record.breakdown.get("step")]
    names = (*PARTS, "step")
    return {name: sum(parts.get(name, 0.0) for parts in timed) / len(timed) for name in names} if timed else {}
