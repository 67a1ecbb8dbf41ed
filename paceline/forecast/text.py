"""A forecast as lines of text, at most 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from paceline.forecast.certificate import Certificate
from paceline.forecast.records import unit_of
from paceline.forecast.study import Point, Study, rate_of
from paceline.forecast.wording import MEANING, bottleneck, with_unit
from paceline.run.reference import REFERENCES

WIDTH = 80
NAME = 31
CHANGES = "changes convergence: compare accuracy, not only speed"
EPOCH = 1_281_167  # images of ImageNet's training part


def spoken(study: Study, certificate: Certificate | None, *, price: float = 0.0, samples: int = EPOCH) -> list[str]:
    """Return all lines that a forecast prints."""
    return [
        *_title(study),
        "",
        *_details(study, study.workers[-1]),
        *_by_workers(study),
        *_findings(study, price, samples),
        *_refused(study),
        "",
        *_wrapped("step of one worker: " + study.calibration.source, "  "),
        *(line for assumption in study.assumptions for line in _wrapped(assumption, "  ")),
        *_trust(study, certificate),
    ]


def _title(study: Study) -> list[str]:
    fabric, run = study.fabric, study.run
    port = with_unit(fabric.between.bandwidth)
    place = f"{fabric.nodes} x {fabric.ranks} workers" if fabric.nodes > 1 else f"{fabric.ranks} workers on one node"
    return [f"forecast: {run.model}, batch {run.per_worker} per worker, {place}, {port} per node"]


def _details(study: Study, workers: int) -> Iterator[str]:
    points = study.at(workers)
    unit = unit_of(study.run.model)
    head = f"{unit}/s"
    yield f"{f'at {workers:,} workers':{NAME}} {head:>10} {'eff.':>5} {'wait ms':>8} {'MB':>7}  limited by"
    for same in (True, False):
        group = [point for point in points if point.same_result == same]
        if group and not same:
            yield CHANGES
        for point in group:
            yield from _row(point)


def _row(point: Point) -> Iterator[str]:
    outlook = point.outlook
    assert outlook is not None
    figures = f"{outlook.rate:>10,.0f} {outlook.efficiency:>5.0%} {outlook.exposed * 1e3:>8,.1f}"
    figures += f" {outlook.received / 1e6:>7,.0f}"
    yield f"{point.strategy:{NAME}} {figures}  {bottleneck(outlook)}"


def _by_workers(study: Study) -> Iterator[str]:
    counts = study.workers
    if len(counts) < 2:
        return
    shown = counts[-8:]
    yield ""
    yield f"{'efficiency at':{NAME}} " + " ".join(f"{count:>5}" for count in shown)
    order = {point.strategy: k for k, point in enumerate(study.at(counts[-1]))}
    for strategy in sorted(study.strategies, key=lambda name: order.get(name, len(order))):
        cells = {point.workers: point.outlook for point in study.of(strategy)}
        if any(cells.values()):
            columns = (f"{seen.efficiency:>5.0%}" if (seen := cells.get(count)) else f"{'-':>5}" for count in shown)
            yield f"{strategy:{NAME}} " + " ".join(columns)


def _findings(study: Study, price: float, samples: int) -> Iterator[str]:
    workers = study.workers[-1]
    same = [p for p in study.at(workers) if p.same_result and p.strategy not in REFERENCES]
    if not same:
        return
    yield ""
    best = same[0]
    assert best.outlook is not None
    limit = bottleneck(best.outlook)
    yield from _wrapped(f"{best.strategy} is limited by {limit}: {MEANING[limit]}")
    if len(study.workers) > 1:
        knee = study.knee(best.strategy)
        reach = f"still pays at {workers:,} workers"
        if knee is not None:
            reach = f"pays up to {knee:,} workers: beyond, new workers add less than half of their own rate"
        yield from _wrapped(f"{best.strategy} {reach}")
    yield from _break_even(study, best, same)
    if price > 0:
        yield from _costs(study, best, price, samples)


def _break_even(study: Study, best: Point, same: Sequence[Point]) -> Iterator[str]:
    rival = next((p for p in same if p.strategy == "allreduce" and p is not best), None)
    rival = rival or next((p for p in same[1:] if rate_of(p) < 0.995 * rate_of(best)), None)
    if rival is None:
        return
    bandwidths = study.break_even(best.strategy, rival.strategy, best.workers)
    pair = f"{best.strategy} and {rival.strategy}"
    if bandwidths:
        places = " and ".join(with_unit(bandwidth) for bandwidth in bandwidths)
        yield from _wrapped(f"{pair} are equally fast at {places} per node ({best.workers:,} workers)")
    else:
        yield from _wrapped(f"{pair} do not change places between 1 Mbit/s and 1 Tbit/s ({best.workers:,} workers)")


def _costs(study: Study, best: Point, price: float, samples: int) -> Iterator[str]:
    assert best.outlook is not None
    nodes = study.fabric.resized(best.workers).nodes
    hours = samples / best.outlook.rate / 3600
    yield from _wrapped(
        f"an epoch of {samples:,} samples with {best.strategy} takes {hours * 60:,.1f} minutes and costs "
        f"{hours * nodes * price:,.2f} ({nodes} nodes at {price:g} an hour)"
    )


def _refused(study: Study) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for point in study.points:
        if point.problem:
            reasons.setdefault(point.problem, []).append(f"{point.strategy} at {point.workers}")
    if reasons:
        yield ""
    for problem, places in reasons.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        yield from _wrapped(f"no forecast for {places[0]}{more}: {problem}")


def _trust(study: Study, certificate: Certificate | None) -> Iterator[str]:
    if certificate is None:
        yield from _wrapped("no certificate: paceline forecast --check measures how far forecasts are off here", "  ")
        return
    yield from _wrapped(certificate.sentence(), "  ")
    for warning in certificate.extrapolations(study):
        yield from _wrapped("beyond what was checked: " + warning, "  ")


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
