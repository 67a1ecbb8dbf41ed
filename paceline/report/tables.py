"""The numbers behind every chart, as rows of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from paceline.measure.record.record import Record
from paceline.measure.stats.intervals import Interval
from paceline.race.results.fields import Field
from paceline.race.results.learning import final_accuracy, time_to_target
from paceline.race.results.standing import PARTS, Standing, mean_parts, name_of, rate_of
from paceline.report.trace import Span
from paceline.run.reference import COMPARED


@dataclass(frozen=True)
class Table:
    """A table of texts. The first column names the row; the others are numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def throughput(field: Field, standings: Sequence[Standing]) -> Table:
    """Return the rates, with a column for accuracy if any contender of the field has one."""
    graded = any(standing.accuracy is not None for standing in field.standings)
    extra = ("accuracy",) if graded else ()
    head = ("contender", f"{field.unit}/s", "low", "high", "of ddp", "of limit", *extra, "interval over")
    return Table(head, tuple(_throughput(field, standing, graded=graded) for standing in standings))


def _throughput(field: Field, standing: Standing, *, graded: bool) -> tuple[str, ...]:
    ratios = [_ratio(standing, field.reference(which, standing)) for which in COMPARED]
    accuracy = "-" if standing.accuracy is None else f"{standing.accuracy:.4f}"
    return (standing.label, *_interval(standing.rate, ",.1f"), *ratios, *([accuracy] if graded else []), standing.over)


def _ratio(standing: Standing, rival: Standing | None) -> str:
    if rival is None:
        return "-"
    if rival is standing:
        return "1"
    return plain(standing.against(rival))


def plain(interval: Interval, digits: int = 2) -> str:
    """Format an interval as 1.06 [1.02, 1.10], or only its centre if there is no interval."""
    if interval.low is None or interval.high is None:
        return f"{interval.centre:.{digits}f}"
    return f"{interval.centre:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def _interval(interval: Interval, form: str) -> tuple[str, str, str]:
    sides = (interval.centre, None if interval.low is None else max(0.0, interval.low), interval.high)
    centre, low, high = ("-" if side is None else format(side, form) for side in sides)
    return centre, low, high


def scaling(field: Field) -> Table:
    rows = []
    for standing in field.standings:
        speedup = field.speedup(standing)
        share = "-" if speedup is None else f"{100 * speedup.centre / standing.workers:.0f} %"
        shown = "-" if speedup is None else plain(speedup)
        rows.append((standing.label, str(standing.workers), *_interval(standing.rate, ",.1f"), shown, share))
    head = ("contender", "workers", f"{field.unit}/s", "low", "high", "speed-up", "efficiency")
    return Table(head, tuple(rows))


def breakdown(standings: Sequence[Standing]) -> Table:
    rows = []
    for standing in standings:
        parts, inside = mean_parts(standing), standing.waits_in_backward
        cells = ["-" if inside and name == "exposed" else f"{parts[name] * 1e3:.1f}" for name in (*PARTS, "step")]
        rows.append((standing.label, *cells, "-" if inside else f"{100 * parts['exposed'] / parts['step']:.1f} %"))
    return Table(("contender", *(f"{name} ms" for name in (*PARTS, "step")), "waiting"), tuple(rows))


def received(record: Record) -> float | None:
    """Return the mean bytes that a worker receives per step, without servers.

    None if an older record did not count them.
    """
    counted = (record.bytes.get("received_per_step") or [])[: record.workers]
    if not counted or not record.counts_bytes:
        return None
    return float(sum(counted)) / len(counted)


def traffic(standings: Sequence[Standing]) -> Table:
    rows = []
    for standing in standings:
        last = standing.last
        nbytes, chunks = received(last), last.plan.get("chunks")
        counted = "not counted" if nbytes is None else f"{nbytes:,.0f}"
        rows.append((standing.label, counted, str(chunks or "-"), last.comm))
    return Table(("contender", "bytes received per worker and step", "chunks", "comm"), tuple(rows))


def steps(values: Mapping[str, Sequence[float]]) -> Table:
    """Return quantiles of the step times of each contender, in milliseconds."""
    parts = (0.05, 0.5, 0.95, 0.99)
    rows = []
    for label, seconds in values.items():
        figures = [*(quantile(seconds, part) for part in parts), max(seconds)]
        rows.append((label, str(len(seconds)), *(f"{1e3 * value:.2f}" for value in figures)))
    return Table(("contender", "steps", *(f"{part:.0%} ms" for part in parts), "longest ms"), tuple(rows))


def quantile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that at least a share `part` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(part * len(ordered)) - 1)]


def memory(values: Mapping[str, tuple[float, float | None, int]]) -> Table:
    """Return the peak memory in bytes: PSS (shared pages divided among processes), and RSS if it is known."""
    rows = tuple(
        (label, f"{pss / 1e6:,.0f}", "-" if rss is None else f"{rss / 1e6:,.0f}", str(starts))
        for label, (pss, rss, starts) in values.items()
    )
    return Table(("processes of", "MB per worker (PSS)", "MB resident (RSS)", "starts"), rows)


def curve(standings: Sequence[Standing], values: Sequence[Sequence[float]], what: str) -> Table:
    up = what == "accuracy"
    rows = []
    for standing, series in zip(standings, values, strict=True):
        figures = (series[0], max(series) if up else min(series), series[-1])
        rows.append((standing.label, str(len(series)), *(f"{value:.4g}" for value in figures)))
    return Table(("contender", "points", f"first {what}", "highest" if up else "lowest", "last"), tuple(rows))


def learning(standings: Sequence[Standing], target: float) -> Table:
    """Return final accuracy and time to a target, each with its interval over starts."""
    rows = []
    for standing in standings:
        final, (times, reached) = final_accuracy(standing.records), time_to_target(standing.records, target)
        share = f"{reached} of {len(standing.records)}"
        rows.append((standing.label, _around(final, 4), share, "-" if times is None else _around(times, 1)))
    return Table(("contender", "final accuracy", f"reached {target:.4g}", "seconds until then"), tuple(rows))


def _around(interval: Interval | None, digits: int) -> str:
    if interval is None:
        return "-"
    text = f"{interval.centre:.{digits}f}"
    if interval.low is None or interval.high is None:
        return text
    return f"{text} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def timeline(steps: Mapping[str, Sequence[Span]]) -> Table:
    """Return the time of each contender by rank, lane and part.

    Single chunks are not listed, because the table would be long.
    """
    sums: dict[tuple[str, int, str, str], list[float]] = {}
    for label, spans in steps.items():
        for span in spans:
            name = span.name if span.lane == "compute" else "chunks under way"
            sums.setdefault((label, span.rank, span.lane, name), []).append(span.stop - span.start)
    rows = tuple(
        (label, str(rank), lane, name, str(len(seconds)), f"{sum(seconds) * 1e3:.2f}", f"{max(seconds) * 1e3:.2f}")
        for (label, rank, lane, name), seconds in sums.items()
    )
    return Table(("contender", "rank", "lane", "part", "count", "ms in all", "longest ms"), rows)


def is_judged(record: Record) -> bool:
    """Return whether the run had enough steps to judge whether it is steady."""
    return bool(record.series.get("judged", True))


def runs(records: Sequence[Record]) -> Table:
    rows = []
    for record in records:
        rate = rate_of(record)
        shown = "-" if rate is None else f"{rate:,.1f} {record.unit}/s"
        verdict = record.verdict if is_judged(record) else "not judged"
        rows.append((record.id, name_of(record), str(record.workers), record.kind, shown, verdict))
    return Table(("id", "contender", "workers", "kind", "rate", "verdict"), tuple(rows))
