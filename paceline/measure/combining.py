"""Combine the reports of all ranks into one record: rates, parts of a step, bytes, resources and notes."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from statistics import fmean, median
from typing import Any

from paceline.cluster.environment import capture
from paceline.comm.patterns import ring_cost
from paceline.measure.breakdown import breakdown, over_ranks
from paceline.measure.clock import align
from paceline.measure.communication import communication, task
from paceline.measure.input import input_notes, input_part
from paceline.measure.periods import period_of, uneven
from paceline.measure.record.figures import (
    Accuracy,
    Bytes,
    Clock,
    Flops,
    Metric,
    NetworkPart,
    Resources,
    Series,
    StalenessPart,
    TimedIncident,
    TotalRate,
)
from paceline.measure.record.rank_report import Coding, Grade, MetricRows, RankReport, Staleness
from paceline.measure.record.record import Record
from paceline.measure.same_result import has_same_result
from paceline.measure.stats.intervals import autocorrelation, block_interval, leaning, standard_error, summary
from paceline.measure.stats.steady import LEAST, Settled, settle
from paceline.run.run import Run
from paceline.strategy.rules.server import largest_lead
from paceline.workload.computes import MENU as COMPUTE

ALIKE = "neighboring steps are alike: intervals inside one run may be too narrow"
UPDATES = "step"  # the unit of a script whose samples are not counted


def new_id() -> str:
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"


def now_text() -> str:
    """Return the time in UTC, as records state it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def failed_record(run: Run, why: str, *, text: str | None = None) -> Record:
    """Make the record of a run that failed; it has no figures."""
    return Record(
        id=new_id(),
        text=text or run.text,
        time=now_text(),
        run=run,
        same_result=has_same_result(run),
        environment=capture(),
        verdict="failed",
        failure=why,
        workers=run.workers,
    )


def make_record(
    run: Run,
    notes: Sequence[str],
    ranks: Sequence[RankReport],
    network: NetworkPart | None = None,
    *,
    peak: float | None = None,
    drop: bool = True,
) -> Record:
    """Make the record of a run from the reports of its ranks; `drop` leaves out blocks that were still warm-up."""
    first = ranks[0]
    series = [fmean(values) for values in zip(*(rank.steps for rank in ranks), strict=True)]
    warm = [fmean(values) for values in zip(*(rank.warmup for rank in ranks), strict=True)]
    settled, judged = _settled(warm, series, period_of(run))
    unequal = uneven(run, len(warm), len(first.seconds), len(series) // len(first.seconds))
    dropped, settled = _dropped(settled, len(warm), len(first.seconds), len(series)) if drop else (0, settled)
    ranks = [_after(rank, dropped, len(series) // len(rank.seconds)) for rank in ranks]
    series = series[dropped * (len(series) // len(first.seconds)) :]
    totals = _totals(ranks)
    parts = over_ranks([breakdown(rank.steps, rank.parts) for rank in ranks])
    events = [rank.events for rank in ranks]
    talk = communication(
        parts,
        events,
        [rank.events_exposed for rank in ranks],
        separable=not (run.reference and run.reference.waits_in_backward),
    )
    stored = input_part(ranks)
    return Record(
        kind=COMPUTE.make(run.compute).kind,
        id=new_id(),
        text=run.text,
        time=now_text(),
        run=run,
        same_result=has_same_result(run),
        environment=first.environment,
        notes=[
            *(*notes, *first.notes, *_different_machines(ranks), *unequal),
            *([ALIKE] if leaning(series) else []),
            *_starved(parts),
            *input_notes(stored),
        ],
        verdict="steady" if settled.steady else "unsteady",
        workers=run.workers,
        device=first.device,
        unit=first.unit,
        comm=first.comm,
        rate={
            "total": rate(totals, series),
            "per_worker": [fmean(r.samples / s for s in r.seconds) for r in ranks],
        },
        step=summary([seconds for rank in ranks for seconds in rank.steps]),
        series=_series(warm, series, settled, dropped, judged),
        breakdown=parts,
        communication=talk,
        task=task(parts, talk, events),
        bytes=_bytes(ranks),
        resources=_resources(ranks, peak),
        input=stored,
        plan=first.plan,
        profile=first.profile,
        network=first.network if network is None else {**network, **first.network},
        replicas={**first.replicas},
        staleness=_staleness([rank.staleness for rank in ranks]),
        loss=[fmean(values) for values in zip(*(rank.losses for rank in ranks), strict=True)],
        accuracy=[_figures(grade) for grade in first.accuracy],
        metrics=metrics_of([rank.metrics for rank in ranks]),
        incidents=_skips(first),
        # Without events, and in reports of scripts, there are no meetings.
        clock=align([rank.meetings for rank in ranks]) if all(rank.meetings for rank in ranks) else Clock(),
    )


def _figures(grade: Grade) -> Accuracy:
    return {"epoch": grade["epoch"], "value": grade["value"], "loss": grade["loss"], "samples": grade["samples"]}


def metrics_of(ranks: Sequence[MetricRows]) -> dict[str, Metric]:
    """Return the logged figures, each the mean over the ranks that logged it after the same number of updates."""
    names = dict.fromkeys(name for rows in ranks for name in rows)
    return {name: _metric([dict(rows[name]) for rows in ranks if name in rows]) for name in names}


def _metric(ranks: Sequence[Mapping[int, float]]) -> Metric:
    steps = sorted({step for rows in ranks for step in rows})
    values = [fmean(rows[step] for rows in ranks if step in rows) for step in steps]
    return {"steps": steps, "values": values, "ranks": len(ranks)}


MACHINE = ("processor", "cores", "memory", "python", "packages")  # parts of an environment that change a rate


def _different_machines(ranks: Sequence[RankReport]) -> Iterator[str]:
    """Yield a note if ranks ran on machines that differ, because the record keeps the environment of rank 0."""
    first = ranks[0].environment
    names = [name for name in MACHINE if any(rank.environment.get(name) != first.get(name) for rank in ranks)]
    if names:
        yield f"machines of ranks differ in {', '.join(names)}; the environment is that of rank 0"


INPUT_BOUND = 0.1  # of a step


def _starved(parts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note with advice if the run waits for its samples."""
    share = parts["data"] / parts["step"] if parts["step"] else 0.0
    if share >= INPUT_BOUND:
        yield (
            f"input-bound: {100 * share:.0f} % of a step waits for data. try: paceline data pack for samples that are "
            "decoded once; --source fake(device) shows the rate without waiting"
        )


def _settled(warm: Sequence[float], series: Sequence[float], period: int) -> tuple[Settled, bool]:
    """Return whether the steps are steady, and whether there are enough of them to judge."""
    count = (len(warm) + len(series)) // period
    settled = settle([*warm, *series], period=period)
    if count >= LEAST or period == 1:
        return settled, count >= LEAST
    return Settled(0, False, f"{count} periods of {period} steps are too few to tell"), False


def _dropped(settled: Settled, warm: int, blocks: int, steps: int) -> tuple[int, Settled]:
    """Return how many measured blocks still belong to warm-up; if nearly all do, drop none, and nothing is steady."""
    late = max(0, settled.start - warm)
    dropped = math.ceil(late / max(1, steps // blocks))
    if dropped and blocks - dropped < 2:
        return 0, Settled(settled.start, False, settled.why or "warm-up reaches into the measured steps")
    return dropped, settled


def _after(rank: RankReport, dropped: int, length: int) -> RankReport:
    """Return the report of a rank without the dropped blocks."""
    first = dropped * length
    parts = {name: values[first:] for name, values in rank.parts.items()}
    return replace(rank, seconds=rank.seconds[dropped:], steps=rank.steps[first:], parts=parts)


def _series(warm: Sequence[float], series: Sequence[float], settled: Settled, dropped: int, judged: bool) -> Series:
    """Return the seconds of every step, the mean over ranks; the verdict about steadiness is made from them."""
    return {
        "warmup": list(warm),
        "seconds": list(series),
        "start": settled.start,
        "dropped_blocks": dropped,
        "why": settled.why,
        "autocorrelation": autocorrelation(series),
        "judged": judged,
    }


def _totals(ranks: Sequence[RankReport]) -> list[float]:
    """Return the rate of the whole job for each block: the sum over ranks, or the mean if only updates are counted."""
    rates = zip(*([rank.samples / seconds for seconds in rank.seconds] for rank in ranks), strict=True)
    return [fmean(block) if ranks[0].unit == UPDATES else sum(block) for block in rates]


def _resources(ranks: Sequence[RankReport], peak: float | None) -> Resources:
    """Return memory, CPU (1.0 is one core), GPU, FLOPs relative to the peak, and compression of each worker."""
    steps = [fmean(rank.steps) for rank in ranks]
    resources: Resources = {
        "pss_peak": [rank.pss_peak for rank in ranks],
        "rss_peak": [rank.rss_peak for rank in ranks],
        "cpu_seconds_per_step": [rank.cpu_seconds_per_step for rank in ranks],
        "cpu_use": [rank.cpu_seconds_per_step / step for rank, step in zip(ranks, steps, strict=True)],
        "gpu_use": [rank.gpu["use"] for rank in ranks],
        "gpu_memory": [rank.gpu["memory"] for rank in ranks],
        "flops": _utilization(ranks, peak),
    }
    if coding := _coding(ranks):
        resources["encode_seconds_per_step"] = [one["encode"] for one in coding]
        resources["decode_seconds_per_step"] = [one["decode"] for one in coding]
    return resources


def _utilization(ranks: Sequence[RankReport], peak: float | None) -> Flops:
    """Return the model FLOPs utilization: FLOPs that the model needs per second, divided by a worker's peak."""
    per_sample = ranks[0].flops
    peaks = [peak or rank.peak for rank in ranks]
    known = [one for one in peaks if one]
    rates = [fmean(rank.samples / seconds for seconds in rank.seconds) for rank in ranks]
    counted = per_sample is not None and per_sample > 0 and len(known) == len(peaks)
    return {
        "per_sample": per_sample,
        "peak": peaks,
        "peak_is": "given" if peak else "measured",
        "utilization": [(per_sample or 0.0) * r / p for r, p in zip(rates, known, strict=True)] if counted else None,
    }


def _bytes(ranks: Sequence[RankReport]) -> Bytes:
    """Return the bytes per step that each process sent and received; with a compressor also before and after it."""
    edges = _edges(ranks)
    counted: Bytes = {
        "sent_per_step": [sum(row[rank] for row in edges) for rank in range(len(edges))],
        "received_per_step": [sum(row) for row in edges],
        "per_edge": edges,
    }
    if ranks[0].buckets:
        counted["buckets"] = list(ranks[0].buckets)
    if coding := _coding(ranks):
        counted["before_compression_per_step"] = [one["dense"] for one in coding]
        counted["after_compression_per_step"] = [one["coded"] for one in coding]
    return counted


def _edges(ranks: Sequence[RankReport]) -> list[list[float]]:
    """Return, for each process, the bytes per step that it received from every worker, or that were pushed to it.

    DDP does not count bytes, so they are computed from its buckets, for a ring.
    """
    edges = [list(rank.received_per_step) for rank in ranks]
    for rank, report in enumerate(ranks):
        if report.buckets and len(ranks) > 1:
            edges[rank][rank - 1] += ring_cost(len(ranks), sum(report.buckets)).nbytes
    width = len(edges[0])
    pushed = zip(*(rank.pushed_per_step for rank in ranks), strict=True)
    return [*edges, *([*column, *(0,) * len(column)][:width] for column in pushed)]


def _staleness(ranks: Sequence[Staleness]) -> StalenessPart:
    """Return the bound of rule server, and the largest measured lead of a worker over the slowest."""
    if not ranks[0]:
        return {}
    lead = largest_lead([rank["pushed"] for rank in ranks], [rank["pulled"] for rank in ranks])
    return {"bound": ranks[0]["bound"], "largest_lead": lead}


def _coding(ranks: Sequence[RankReport]) -> list[Coding]:
    """Return the cost of compression per step for each rank; empty without a compressor."""
    return [rank.coding for rank in ranks] if ranks[0].coding else []


def _skips(first: RankReport) -> list[TimedIncident]:
    count = first.skipped
    return [{"what": "steps skipped because the scaled gradient overflowed", "count": count}] if count else []


def rate(totals: Sequence[float], steps: Sequence[float]) -> TotalRate:
    """Return the samples per second of the whole job, over the repeats in one set of processes.

    The interval is over the steps of these processes: the rate has the relative error of the mean step.
    """
    mean, step = fmean(totals), block_interval(steps)
    half = None if step.high is None else mean * (step.high / step.centre - 1)
    return {
        "median": median(totals),
        "mean": mean,
        "low": None if half is None else mean - half,
        "high": None if half is None else mean + half,
        "confidence": step.confidence,
        "steps": len(steps),
        "error": 1.96 * standard_error(totals),
        "repeats": list(totals),
    }
