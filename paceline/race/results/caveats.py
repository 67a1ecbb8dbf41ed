"""Notes of a verdict: facts about the runs that a reader must know to trust the rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.errors import PacelineError
from paceline.measure.busy import why_busy
from paceline.measure.combining import UPDATES
from paceline.measure.periods import is_uneven, period_of
from paceline.measure.record.record import Record
from paceline.measure.stats.intervals import ENOUGH, leaning
from paceline.race.results.fields import Field
from paceline.race.results.standing import Standing
from paceline.race.results.wording import listed
from paceline.run.run import Run


def caveats(field: Field, workers: int) -> Iterator[str]:
    """Yield notes about the contenders on this many workers, and about their baseline."""
    base, here = field.baseline, field.at(workers)
    seen = _seen(field, workers)
    yield from _busy(seen)
    yield from _no_scaling(base, here)
    for standing in seen:
        yield from _steps(standing)
    yield from _not_judged(seen)
    yield from _interrupted(seen)
    yield from _drifting(seen)


def busy(field: Field, workers: int) -> str:
    """Return the note on a busy machine; empty if no start was disturbed."""
    return next(_busy(_seen(field, workers)), "")


def _seen(field: Field, workers: int) -> list[Standing]:
    """Return the contenders on this many workers and their baseline."""
    base, here = field.baseline, field.at(workers)
    return here if base is None or base in here else [base, *here]


def _busy(standings: Sequence[Standing]) -> Iterator[str]:
    """Yield a note on the number of starts during which the machine had other work, with the worst of them."""
    starts = {
        record.turn if record.race.get("shared") else record.id: record
        for standing in standings
        for record in standing.records
    }
    busy = [(record, why) for record in starts.values() if (why := why_busy(record.busy))]
    if busy:
        _, worst = max(busy, key=lambda entry: float(entry[0].busy.get("other_cores", 0.0)))
        yield f"the machine was busy in {len(busy)} of {len(starts)} starts: {worst}"


def _no_scaling(base: Standing | None, here: Sequence[Standing]) -> Iterator[str]:
    if base is None or base.workers != 1:
        return
    if any(standing.first.unit == UPDATES for standing in here):
        yield (
            "no scaling: the script deals its own batches, and how many samples an update of a worker has is not "
            "known; a rate is in updates of the whole job"
        )
        return
    differing = [
        s for s in here if s.workers > 1 and {k for k in s.work if s.work[k] != base.work.get(k)} == {"batch_size"}
    ]
    if differing:
        sizes = " or ".join(sorted({standing.work["batch_size"] for standing in differing}, key=int))
        names = ", ".join(standing.label for standing in differing)
        yield f"no scaling of {names}: a worker has {sizes} samples per step there and {base.work['batch_size']} alone"


def _steps(standing: Standing) -> Iterator[str]:
    """Yield notes on steps that drift, and on blocks that are not whole periods of a rule."""
    unsteady = sum(record.outcome == "unsteady" for record in standing.records)
    if unsteady:
        were = "was" if len(standing.records) == 1 else "were"
        yield f"{unsteady} of {len(standing.records)} starts of {standing.label} {were} unsteady"
    period = _period(standing.first.run)
    if any(is_uneven(record, period) for record in standing.records):
        yield (
            f"measured steps of {standing.label} hold no whole number of its periods of {period} steps: its rate has "
            "too many exchanges in it or too few"
        )


def _period(run: Run) -> int:
    """Return the steps after which a rule repeats itself; 1 for a rule that this version does not have."""
    try:
        return period_of(run)
    except PacelineError:
        return 1


def _not_judged(standings: Sequence[Standing]) -> Iterator[str]:
    """Yield a note per reason with the contenders whose steadiness could not be judged for that reason."""
    reasons: dict[str, dict[str, None]] = {}
    for standing in standings:
        for record in [one for one in standing.records if one.outcome == "not judged"][-1:]:
            reasons.setdefault(_reason(record), {})[standing.label] = None
    for why, labels in reasons.items():
        yield f"whether {', '.join(labels)} {'are' if len(labels) > 1 else 'is'} steady was not judged: {why}"


def _reason(record: Record) -> str:
    return str(record.series.get("why") or "too few steps")


def _interrupted(standings: Sequence[Standing]) -> Iterator[str]:
    """Yield a note on rounds whose cells ran in more than one sitting."""
    sittings: dict[tuple[object, object], set[object]] = {}
    for record in (record for standing in standings for record in standing.records):
        if record.turn is not None and not record.turn[3]:
            name, number, sitting, _ = record.turn
            sittings.setdefault((name, number), set()).add(sitting)
    torn = sorted({str(number) for (_, number), days in sittings.items() if len(days) > 1})
    if torn:
        yield (
            f"round(s) {', '.join(torn)} were interrupted: runs before the interruption are not compared with runs "
            "after it; race --retry runs the round again"
        )


def _drifting(standings: Sequence[Standing]) -> Iterator[str]:
    names = [s.label for s in standings if len(s.rates) >= ENOUGH and leaning(s.rates)]
    if names:
        yield (
            f"rates of {listed(names)} resemble the rate of the round before: their own intervals may be too narrow; "
            "ratios compare within a round"
        )
