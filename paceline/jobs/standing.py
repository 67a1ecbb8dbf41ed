"""What a contender has shown over rounds, and the verdict of a heat in words.

A winner must be different from every other contender of its group: against the closest one alone it would be enough
for two, and more contenders only make it harder to be called one by chance. Strategies that change convergence are a
group of their own: a rate without accuracy does not make them winners. The limit exchanges nothing and never wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from paceline.bench.ranking import ranked
from paceline.bench.stats import ENOUGH, Interval, differs, leaning, mean_interval, ratio_interval
from paceline.jobs.cells import BASELINE, Entry
from paceline.jobs.measure import UPDATES, is_uneven, period_of
from paceline.record import Record


@dataclass(frozen=True)
class Standing:
    """A contender of a heat with the records of the rounds in which it ended well."""

    entry: Entry
    records: Mapping[int, Record]

    @property
    def label(self) -> str:
        return self.entry.label

    @property
    def rates(self) -> dict[int, float]:
        return {number: record.rate["total"]["mean"] for number, record in sorted(self.records.items())}

    @property
    def rate(self) -> Interval | None:
        return mean_interval(list(self.rates.values())) if self.records else None

    @property
    def last(self) -> Record | None:
        return self.records[max(self.records)] if self.records else None

    @property
    def kind(self) -> str:
        """measured, or replayed where compute was timed waiting."""
        return self.last.kind if self.last is not None else "measured"

    @property
    def unsteady(self) -> int:
        return sum(record.verdict == "unsteady" and _is_judged(record) for record in self.records.values())

    @property
    def unjudged(self) -> list[Record]:
        """Repeats with too few steps to tell whether they are steady."""
        return [record for record in self.records.values() if not _is_judged(record)]

    @property
    def updates(self) -> int:
        """Of one repeat, warm-up and all: what a loss or an accuracy was reached with."""
        return max(map(_updates, self.records.values()), default=0)

    def paired(self, other: Standing) -> tuple[list[float], list[float]]:
        """Rates of the rounds that both have; not where a race was interrupted in between."""
        mine, theirs = self.rates, other.rates
        rounds = [k for k in mine if k in theirs and self.records[k].turn == other.records[k].turn]
        return [mine[number] for number in rounds], [theirs[number] for number in rounds]

    def against(self, other: Standing) -> Interval | None:
        """The ratio of rates, round by round: both met the same slow minutes."""
        mine, theirs = self.paired(other)
        return ratio_interval(mine, theirs) if mine else None

    @property
    def batches(self) -> set[int]:
        """Samples of one worker per backward; a script may choose them by the number of workers."""
        return {record.run.per_worker for record in self.records.values()}

    @property
    def counts_updates(self) -> bool:
        """Whether the script deals its own batches: nobody knows how many samples an update has."""
        return any(record.unit == UPDATES for record in self.records.values())

    def speedup(self, alone: Standing) -> Interval | None:
        """The ratio to one worker; None where one worker alone does other work, or work that nobody knows."""
        if self.counts_updates or alone.counts_updates:
            return None
        return self.against(alone) if self.entry.same_work and self.batches == alone.batches else None

    def differs(self, other: Standing) -> bool | None:
        return differs(*self.paired(other))

    def beats(self, other: Standing) -> bool:
        """Surely faster, in the rounds that both have."""
        ratio = self.against(other)
        return bool(self.differs(other)) and ratio is not None and ratio.centre > 1

    @property
    def loss(self) -> float | None:
        """The mean of the last losses, over rounds."""
        tails = [fmean(record.loss[-3:]) for record in self.records.values() if record.loss]
        return fmean(tails) if tails else None

    @property
    def accuracy(self) -> float | None:
        """On the test part of the source at the end, the mean over rounds."""
        found = [record.accuracy[-1]["value"] for record in self.records.values() if record.accuracy]
        return fmean(found) if found else None


def _is_judged(record: Record) -> bool:
    return bool(record.series.get("judged", True))


def _updates(record: Record) -> int:
    series, blocks = record.series, len(record.rate["total"].get("repeats") or [0.0])
    measured = len(series.get("seconds") or ())
    return len(series.get("warmup") or ()) + measured + series.get("dropped_blocks", 0) * (measured // blocks)


def verdict(standings: Sequence[Standing]) -> Iterator[str]:
    """The verdict of one heat: first the winner or that there is none, then what a reader must know."""
    runners = [s for s in standings if s.records and s.label != BASELINE and s.entry.run.reference != "limit"]
    same = ranked(
        (s for s in runners if s.entry.same_result), rate=lambda s: fmean(s.rates.values()), beats=Standing.beats
    )
    yield from _winner(same)
    for standing in runners:
        if not standing.entry.same_result:
            yield _other_group(standing, same)
    yield from _other_batch(standings)
    yield from _remarks(standings)


def _winner(same: Sequence[Standing]) -> Iterator[str]:
    if not same:
        yield "no contender ended well: no verdict"
        return
    best, *others = same
    if not others:
        yield f"{best.label} had nobody to race against"
        return
    rounds = min(len(best.paired(other)[0]) for other in others)
    if rounds < ENOUGH:
        yield f"{rounds} repeat(s) give figures but no verdict: {ENOUGH} are needed"
        return
    level = [other for other in others if not best.beats(other)]
    if not level:
        yield f"winner: {best.label}, {_times(best, others[0])} the rate of {others[0].label} ({rounds} repeats)"
        return
    names = ", ".join(other.label for other in level)
    yield (
        f"{best.label} and {names}: no difference that {rounds} repeats can show "
        f"({_times(best, level[0])} {level[0].label})"
    )
    behind = [other for other in others if other not in level]
    for other in behind[:1]:
        yield f"{best.label} runs at {_times(best, other)} the rate of {other.label}"


def _other_group(standing: Standing, same: Sequence[Standing]) -> str:
    """A rate with what is known of the result beside it; never a winner."""
    against = next((s for s in same if s.label == "ddp"), same[0] if same else None)
    if against is None:
        return f"{standing.label} changes convergence: a rate alone says nothing"
    told = (
        f"{standing.label} runs at {_times(standing, against)} the rate of {against.label}, but changes convergence: "
    )
    if standing.accuracy is not None and against.accuracy is not None:
        return f"{told}its accuracy is {_beside(standing, standing.accuracy, against, against.accuracy, 4)}"
    if standing.loss is None or against.loss is None:
        return f"{told}no winner without accuracy"
    beside = _beside(standing, standing.loss, against, against.loss, 3)
    return f"{told}no winner without accuracy (training loss {beside})"


def _beside(standing: Standing, mine: float, other: Standing, theirs: float, digits: int) -> str:
    """Two figures of training, with the number of updates behind each where that is not the same."""
    if standing.updates == other.updates:
        return f"{mine:.{digits}f} against {theirs:.{digits}f}"
    after, others = f"after {standing.updates} updates", f"after {other.updates}"
    return f"{mine:.{digits}f} {after} against {theirs:.{digits}f} {others}"


def _times(standing: Standing, other: Standing) -> str:
    ratio = standing.against(other)
    if ratio is None:
        return "an unknown share of"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.centre:.2f} times"
    return f"{ratio.centre:.2f} times (95 % interval {ratio.low:.2f} to {ratio.high:.2f})"


def _other_batch(standings: Sequence[Standing]) -> Iterator[str]:
    alone = next((s for s in standings if s.label == BASELINE and s.records), None)
    if alone and any(s.counts_updates for s in standings):
        yield (
            "note: no scaling: the script deals its own batches, and how many samples an update of a worker has is not "
            "known; a rate is in updates of the whole job"
        )
        return
    odd = [s for s in standings if alone and s.records and s.entry.same_work and s.batches != alone.batches]
    if alone and odd:
        theirs = " or ".join(map(str, sorted(set().union(*(s.batches for s in odd)))))
        yield (
            f"note: no scaling of {', '.join(s.label for s in odd)}: the script gives a worker {theirs} samples there "
            f"and {' or '.join(map(str, sorted(alone.batches)))} alone"
        )


def _remarks(standings: Sequence[Standing]) -> Iterator[str]:
    replayed = [s.label for s in standings if s.kind == "replayed"]
    if replayed:
        yield f"note: compute of {', '.join(replayed)} was replayed: timed waits, not arithmetic"
    for standing in standings:
        if standing.unsteady:
            yield f"note: {standing.unsteady} of {len(standing.records)} repeats of {standing.label} were unsteady"
        period = period_of(standing.entry.run)
        if any(is_uneven(record, period) for record in standing.records.values()):
            yield (
                f"note: measured steps of {standing.label} hold no whole number of its periods of "
                f"{period} steps: its rate has too many exchanges in it or too few"
            )
    yield from _not_judged(standings)
    torn = sorted({number for number, turns in _turns(standings).items() if len(turns) > 1})
    if torn:
        yield (
            f"note: round(s) {', '.join(map(str, torn))} were interrupted: what ran before is not compared with what "
            "ran after; --retry runs them again"
        )
    drifting = [s.label for s in standings if len(s.records) >= ENOUGH and leaning(list(s.rates.values()))]
    if drifting:
        yield (
            f"note: rates of {', '.join(drifting)} lean on the round before: their own intervals may be too narrow; "
            "ratios compare within a round"
        )


def _not_judged(standings: Sequence[Standing]) -> Iterator[str]:
    """Too few steps to tell is not the same as unsteady."""
    found: dict[str, list[str]] = {}
    for standing in standings:
        for record in standing.unjudged[-1:]:
            found.setdefault(record.series["why"], []).append(standing.label)
    for why, labels in found.items():
        yield f"note: whether {', '.join(labels)} {'are' if len(labels) > 1 else 'is'} steady was not judged: {why}"


def _turns(standings: Sequence[Standing]) -> dict[int, set[tuple[Any, ...] | None]]:
    """By round, the sittings in which its cells ran."""
    found: dict[int, set[tuple[Any, ...] | None]] = {}
    for standing in standings:
        for number, record in standing.records.items():
            found.setdefault(number, set()).add(record.turn)
    return found
