"""Charts of the distribution of step times, and of the memory of workers."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from statistics import fmean, median

from paceline.measure.record.figures import Memory, Resources
from paceline.race.results.standing import Standing
from paceline.report import tables
from paceline.report.chart import Bar, Hill, Row, Rows, Tick
from paceline.report.chart.rows import spread
from paceline.report.plots import Figure, color_of

FEWEST = 5  # fewest steps for a distribution
TOGETHER = "together"
_STRETCHES = 60


def steps(standings: Sequence[Standing], workers: int) -> Figure | None:
    """Return a histogram of step times for each contender, over all its starts and on one axis."""
    seconds = {s.label: _seconds(s) for s in standings}
    shown = [s for s in standings if len(seconds[s.label]) >= FEWEST]
    if not shown:
        return None
    values = {s.label: seconds[s.label] for s in shown}
    # A few steps that took very long would leave no room for the others.
    low, high = min(map(min, values.values())), max(tables.quantile(one, 0.99) for one in values.values())
    low, high = 1e3 * low * 0.95, 1e3 * min(high * 1.1, max(map(max, values.values())) * 1.02)
    rows = tuple(_row(s, [1e3 * value for value in values[s.label]], low, high) for s in shown)
    return Figure(
        name=f"steps-{workers}",
        title="Step times",
        says="; ".join(f"{label} {1e3 * median(one):.1f} ms in the median" for label, one in values.items()) + ".",
        chart=Rows("ms per step", rows, start=low, end=high, thick=30, gap=10),
        table=tables.steps(values),
    )


def _seconds(standing: Standing) -> list[float]:
    return [value for record in standing.records for value in record.series.get("seconds", []) if 0 < value < inf]


def _row(standing: Standing, values: Sequence[float], low: float, high: float) -> Row:
    middle, beyond = median(values), sum(value > high for value in values)
    says = f"{standing.label}: {len(values)} steps, median {middle:.2f} ms, 5 to 95 % "
    says += f"{tables.quantile(values, 0.05):.2f} to {tables.quantile(values, 0.95):.2f} ms"
    says += f", {beyond} longer than {high:.0f} ms" if beyond else ""
    width = (high - low) / _STRETCHES
    heights = spread(values, low, high, _STRETCHES)
    hill = Hill(low, width, heights, color_of(standing), says)
    return Row(standing.label, (hill, Tick(middle, says)), f"{middle:,.1f}")


def memory(standings: Sequence[Standing], workers: int) -> Figure | None:
    """Return a chart of each contender's peak memory per worker, from starts of its own.

    Contenders without one, that shared processes, have one bar.
    """
    values: dict[str, tuple[float, float | None, int]] = {}
    colors: dict[str, str] = {}
    for standing in standings:
        own: list[Resources | Memory] = [one.resources for one in standing.records if not one.race.get("mates")]
        own += [alone for one in standing.records if (alone := one.resources.get("alone"))]
        _add(values, standing.label, own)
        colors[standing.label] = color_of(standing)
    unknown = [s for s in standings if s.label not in values]
    shared = {record.turn: record for s in unknown for record in s.records if record.race.get("mates")}
    mates = sorted({len(record.race.get("mates", [])) for record in shared.values()})
    for count in mates:
        label = f"{count + 1} contenders {TOGETHER}"
        known = [record.resources for record in shared.values() if len(record.race.get("mates", [])) == count]
        _add(values, label, known)
    if not values:
        return None
    rows = [
        Row(label, (_bar(label, pss, colors.get(label, "reference")),), f"{pss / 1e6:,.0f}")
        for label, (pss, *_) in values.items()
    ]
    return Figure(
        name=f"memory-{workers}",
        title="Memory",
        says="; ".join(f"{label} {pss / 1e6:,.0f} MB" for label, (pss, *_) in values.items()) + ".",
        chart=Rows("MB per worker at the peak", tuple(rows)),
        table=tables.memory(values),
    )


def _bar(label: str, nbytes: float, color: str) -> Bar:
    return Bar(0.0, nbytes / 1e6, color, f"{label}: {nbytes / 1e6:,.0f} MB per worker")


def _add(values: dict[str, tuple[float, float | None, int]], label: str, starts: Sequence[Resources | Memory]) -> None:
    """Add the memory of a contender: the mean over workers, in the start with the largest one."""
    peaks = [fmean(peak) for known in starts if (peak := known.get("pss_peak"))]
    resident = [fmean(peak) for known in starts if (peak := known.get("rss_peak"))]
    if peaks and max(peaks) > 0:
        values[label] = (max(peaks), max(resident) if resident else None, len(peaks))
