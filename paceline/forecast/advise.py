"""Advice: the fastest strategy with the same result, its runners-up, and whether stock DDP is enough.

A strategy that changes convergence is named, but advised only if records show that it keeps the accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline.forecast.study import Point, Study, point_of, rate_of
from paceline.forecast.wording import MEANING, bottleneck
from paceline.measure.record.record import Record
from paceline.run.reference import REFERENCES

BUCKETS = (1, 5, 10, 25, 50, 100)  # MB, bucket_cap_mb of DDP
ENOUGH = 0.98  # share of the best rate from which DDP is enough
KEEPS = 0.005  # accuracy that a strategy may lose against all-reduce
SYNONYMS = ("replicated", "ddl")  # other names of the same run


@dataclass(frozen=True)
class Advice:
    """The advice for one number of workers.

    `ddp` is the rate of stock DDP with its best bucket size; `faster` are strategies that change convergence.
    """

    workers: int
    best: Point
    runners_up: tuple[Point, ...]
    limit: Point | None
    bucket: int
    ddp: float
    faster: tuple[Point, ...]
    kept: Mapping[str, tuple[float, float]]  # strategy -> its accuracy and that of all-reduce

    @property
    def ddp_is_enough(self) -> bool:
        return self.ddp >= ENOUGH * rate_of(self.best)


def advise(study: Study, records: Iterable[Record] = ()) -> Advice | None:
    """Return the advice for the largest number of workers, or None if no strategy fits."""
    workers = study.workers[-1]
    points = [p for p in study.at(workers) if p.strategy not in (*REFERENCES, *SYNONYMS)]
    kept = evidence(study.run.model, records)
    sound = [p for p in points if p.same_result or p.strategy in kept]
    if not sound:
        return None
    best = sound[0]
    limit = next((p for p in study.at(workers) if p.is_bound), None)
    bucket, ddp = _ddp(study, workers)
    faster = tuple(p for p in points if not p.same_result and p not in sound and rate_of(p) > 1.02 * rate_of(best))
    return Advice(workers, best, tuple(sound[1:4]), limit, bucket, ddp, faster, kept)


def _ddp(study: Study, workers: int) -> tuple[int, float]:
    """Return the bucket size of stock DDP and its rate: the fastest size, or the default if it is nearly as fast."""
    fabric = study.fabric.resized(workers)
    rates = {
        size: rate_of(point_of(study.run.with_(schedule=f"fusion(mb={size})"), "allreduce", fabric, study.calibration))
        for size in BUCKETS
    }
    best = max(rates, key=rates.__getitem__)
    chosen = 25 if rates[25] >= ENOUGH * rates[best] else best
    return chosen, rates[chosen]


def evidence(model: str, records: Iterable[Record]) -> dict[str, tuple[float, float]]:
    """Return strategies whose accuracy in records is no worse than that of all-reduce, each with both accuracies."""
    last: dict[str, list[float]] = {}
    for record in records:
        if record.run.model == model and record.accuracy:
            last.setdefault(record.run.strategy or "allreduce", []).append(float(record.accuracy[-1]["value"]))
    base = last.get("allreduce")
    if not base:
        return {}
    mean = sum(base) / len(base)
    means = {name: sum(values) / len(values) for name, values in last.items()}
    return {name: (value, mean) for name, value in means.items() if value >= mean - KEEPS}


def spoken(study: Study, advice: Advice) -> Iterator[str]:
    """Yield the advice as paragraphs."""
    best, unit = advice.best, "samples"
    assert best.outlook is not None
    part = ""
    if advice.limit is not None:
        part = f", {rate_of(best) / rate_of(advice.limit):.0%} of the rate without any communication"
    limit = bottleneck(best.outlook)
    yield (
        f"Use {best.strategy} on {advice.workers:,} workers: {rate_of(best):,.0f} {unit}/s{part}. "
        f"It is limited by {limit}: {MEANING[limit]}."
    )
    if not best.same_result:
        value, base = advice.kept[best.strategy]
        yield f"It changes convergence; records show accuracy {value:.4f}, all-reduce {base:.4f}."
    yield _runners_up(best, advice.runners_up)
    yield _stock(advice)
    if advice.faster:
        names = ", ".join(f"{p.strategy} ({rate_of(p) / rate_of(best) - 1:+.0%})" for p in advice.faster[:3])
        yield (
            f"Faster, but not advised: {names}. They change convergence, and no record shows that they keep the "
            f"accuracy of {study.run.model}. paceline race --epochs N measures it."
        )


def _runners_up(best: Point, others: Sequence[Point]) -> str:
    if not others:
        return "Nothing else fits."
    leads = ", ".join(f"{p.strategy} ({rate_of(p) / rate_of(best) - 1:+.1%})" for p in others)
    return f"Runners-up: {leads}."


def _stock(advice: Advice) -> str:
    setting = f"DistributedDataParallel(model, bucket_cap_mb={advice.bucket})"
    ratio = advice.ddp / rate_of(advice.best)
    if advice.ddp_is_enough:
        return f"Stock DDP is enough: {setting} reaches {ratio:.0%} of it."
    return f"Stock DDP reaches {ratio:.0%} of it: {setting}."


def flags(study: Study, advice: Advice) -> str:
    """Return the command to paste on these machines."""
    run = study.run.with_(workers=advice.workers, strategy=advice.best.strategy)
    return run.command()
