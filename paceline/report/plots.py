"""Charts of a report: each has its table and a sentence beside it, and is drawn as SVG or PNG without a browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from paceline.race.results.fields import Field
from paceline.race.results.learning import target_of, timed_accuracy
from paceline.race.results.standing import PARTS, SAME, Standing, mean_parts, rate_of
from paceline.report import tables
from paceline.report.chart import Bar, Dot, Interval, Line, Lines, Row, Rows
from paceline.report.chart.lines import dash
from paceline.report.palette import LIGHT, SERIES, painted
from paceline.report.tables import Table

WIDE, NARROW = 760, 350
_POINTS = 150  # points of a curve; more would overlap


@dataclass(frozen=True)
class Figure:
    """A chart with the table behind it. Screen readers read `says`."""

    name: str
    title: str
    says: str
    chart: Rows | Lines
    table: Table


def color_of(standing: Standing) -> str:
    """Return the color of a contender's bar, which shows its kind: reference, same result, or changed convergence."""
    if standing.reference:
        return "limit" if standing.reference.is_bound else "reference"
    return "same" if standing.group == SAME else "changes"


def _series(standings: Sequence[Standing]) -> dict[str, str]:
    """Return the color of each line. References are grey as in the bars; each strategy has its own color."""
    roles = {s.label: color_of(s) for s in standings}
    ours = [name for name, role in roles.items() if role in ("same", "changes")]
    colors = {name: SERIES[k % len(SERIES)] for k, name in enumerate(ours)}
    return {name: colors.get(name, role) for name, role in roles.items()}


def throughput(field: Field, standings: Sequence[Standing], workers: int, top: float) -> Figure:
    """Return bars from zero, with the interval and a dot per start. Charts that are compared have the same `top`."""
    rows = tuple(Row(s.label, tuple(_rate_marks(field, s)), f"{s.rate.centre:,.0f}") for s in standings)
    slug = "same" if standings[0].group == SAME else "changes"
    starts = "; a dot is one start" if any(len(s.rates) > 1 for s in standings) else ""
    return Figure(
        name=f"throughput-{slug}-{workers}",
        title="Throughput",
        says=says_of(standings, lambda s: f"{s.label} {tables.plain(s.rate, 0)} {field.unit}/s"),
        chart=Rows(f"{field.unit}/s, 95 % interval{starts}", rows, end=max(top, *(row.end for row in rows))),
        table=tables.throughput(field, standings),
    )


def _rate_marks(field: Field, standing: Standing) -> list[Bar | Interval | Dot]:
    low, high = _sides(standing)
    shown = f"{standing.label}: {tables.plain(standing.rate, 1)} {field.unit}/s over {standing.over}"
    marks: list[Bar | Interval | Dot] = [Bar(0.0, standing.rate.centre, color_of(standing), shown)]
    if high > low:
        marks.append(Interval(low, high))
    if len(standing.rates) > 1:
        starts = [(record, rate) for record in standing.records if (rate := rate_of(record)) is not None]
        marks += [
            Dot(rate, "ink", f"{standing.label}, start {k + 1}: {rate:,.1f} {field.unit}/s ({record.id})")
            for k, (record, rate) in enumerate(starts)
        ]
    return marks


def says_of(standings: Sequence[Standing], word: Callable[[Standing], str]) -> str:
    return "; ".join(word(standing) for standing in standings) + "."


def scaling(field: Field) -> Figure | None:
    """Return the rate over workers with the ideal line, or None if no contender can be compared with one worker."""
    if field.baseline is None or not any(s.workers > 1 and field.speedup(s) for s in field.standings):
        return None
    one, most = field.baseline.rate.centre, field.worlds[-1]
    shown = _of_scaling(field)
    colors = _series(shown)
    ideal = Line("ideal", "soft", ((1.0, one), (float(most), one * most)))
    return Figure(
        name="scaling",
        title="Scaling",
        says=says_of(field.standings, lambda s: f"{s.label} on {s.workers}: {s.rate.centre:,.0f} {field.unit}/s"),
        chart=Lines(
            x_axis="workers",
            y_axis=f"{field.unit}/s",
            lines=tuple(_scaled(field, name, shown, colors[name]) for name in colors),
            note=ideal,
            marks=tuple(map(float, field.worlds)),
            from_zero=True,
        ),
        table=tables.scaling(field),
    )


def _scaled(field: Field, name: str, shown: Sequence[Standing], color: str) -> Line:
    """Return the line of one contender over the numbers of workers.

    It starts at one worker if it can be compared with it.
    """
    mine = [s for s in shown if s.label == name]
    if field.baseline and all(s.workers > 1 for s in mine) and any(field.speedup(s) is not None for s in mine):
        mine.insert(0, field.baseline)
    return Line(
        name,
        color,
        points=tuple((float(s.workers), s.rate.centre) for s in mine),
        intervals=tuple((float(s.workers), *_sides(s)) for s in mine),
        dots=True,
        says=tuple(f"{name} on {s.workers}: {tables.plain(s.rate, 1)} {field.unit}/s" for s in mine),
    )


def _of_scaling(field: Field) -> list[Standing]:
    """Return the contenders of the scaling chart. A baseline that only ran alone has no line of its own."""
    base = field.baseline
    wide = {s.label for s in field.standings if s.workers > 1}
    return [s for s in field.standings if s is not base or s.label in wide]


def _sides(standing: Standing) -> tuple[float, float]:
    rate = standing.rate
    low, high = (rate.centre if side is None else side for side in (rate.low, rate.high))
    return max(0.0, low), high  # a rate is never below zero


def breakdown(standings: Sequence[Standing], workers: int) -> Figure | None:
    shown = [s for s in standings if mean_parts(s)]
    if not shown:
        return None
    return Figure(
        name=f"breakdown-{workers}",
        title="Where a step goes",
        says=says_of(shown, lambda s: f"{s.label} {1e3 * mean_parts(s)['step']:.0f} ms"),
        chart=Rows("ms per step, mean over ranks", tuple(map(_stack, shown)), tuple((part, part) for part in PARTS)),
        table=tables.breakdown(shown),
    )


def _stack(standing: Standing) -> Row:
    """Return a row with the parts of a step, one after the other."""
    parts, at, bars = mean_parts(standing), 0.0, []
    for part in PARTS:
        if part != "exposed" or not standing.waits_in_backward:
            stop = at + 1e3 * parts[part]
            share = 100 * parts[part] / parts["step"]
            bars.append(Bar(at, stop, part, f"{standing.label}, {part}: {stop - at:.2f} ms, {share:.1f} % of the step"))
            at = stop
    return Row(standing.label, tuple(bars), f"{at:,.1f}")


def traffic(standings: Sequence[Standing], workers: int) -> Figure | None:
    counted = [(s, nbytes / 1e6) for s in standings if (nbytes := tables.received(s.last)) is not None]
    if not any(megabytes for _, megabytes in counted):
        return None
    return Figure(
        name=f"bytes-{workers}",
        title="Bytes per step",
        says="; ".join(f"{s.label} {megabytes:.1f} MB" for s, megabytes in counted) + ".",
        chart=bars("MB received per worker and step", [(s, megabytes, f"{megabytes:.1f}") for s, megabytes in counted]),
        table=tables.traffic(standings),
    )


def bars(axis: str, values: Sequence[tuple[Standing, float, str]]) -> Rows:
    """Return a chart with one bar for each contender, and its value as text."""
    return Rows(
        axis, tuple(Row(s.label, (Bar(0.0, v, color_of(s), f"{s.label}: {text}"),), text) for s, v, text in values)
    )


def curves(standings: Sequence[Standing], values: Sequence[Sequence[float]], what: str, workers: int) -> Figure | None:
    """Return a chart with one line per contender. `values` are those of its last start.

    Values that are not finite are left out.
    """
    pairs = [(s, series) for s, series in zip(standings, values, strict=True) if len(series) > 1]
    first, axis = (1, "epoch") if what == "accuracy" else (0, "backward")
    colors = _series([s for s, _ in pairs])
    lines = [
        Line(s.label, colors[s.label], _points(series, first), dash=dash(k), dots=what == "accuracy")
        for k, (s, series) in enumerate(pairs)
    ]
    if not any(line.points for line in lines):
        return None
    return Figure(
        name=f"{what}-{workers}",
        title=what.capitalize(),
        says="; ".join(f"{s.label} from {series[0]:.3g} to {series[-1]:.3g}" for s, series in pairs) + ".",
        chart=Lines(axis, what, tuple(line for line in lines if line.points), whole_x=True),
        table=tables.curve([s for s, _ in pairs], [series for _, series in pairs], what),
    )


def accuracy_in_time(standings: Sequence[Standing], workers: int) -> Figure | None:
    """Return a chart of accuracy against seconds of training, one line per start, and a table of times to a target."""
    known = [s for s in standings if any(len(timed_accuracy(record)) > 1 for record in s.records)]
    target = target_of(record for s in known for record in s.records)
    if not known or target is None:
        return None
    colors = _series(known)
    lines = [
        Line(
            s.label,
            colors[s.label],
            tuple(p for p in timed_accuracy(record) if isfinite(p[1])),
            dash=dash(k),
            dots=True,
        )
        for k, s in enumerate(known)
        for record in s.records
    ]
    table = tables.learning(known, target)
    return Figure(
        name=f"accuracy-time-{workers}",
        title="Accuracy against time",
        says="; ".join(f"{row[0]}: {row[-1]} s to {target:.4g}" for row in table.rows) + ".",
        chart=Lines("seconds of training", "accuracy", tuple(line for line in lines if line.points)),
        table=table,
    )


def logged(standings: Sequence[Standing], name: str, workers: int) -> Figure | None:
    """One line per contender for a figure that a script logged, from its last start, over the number of updates."""
    known = [(s, s.last.metrics[name]) for s in standings if name in s.last.metrics]
    pairs = [(s, metric) for s, metric in known if len(metric["values"]) > 1]
    if not pairs:
        return None
    colors = _series([s for s, _ in pairs])
    lines = [
        Line(
            s.label,
            colors[s.label],
            tuple((float(one["steps"][at]), one["values"][at]) for at in _thinned(len(one["values"]))),
            dash=dash(k),
        )
        for k, (s, one) in enumerate(pairs)
    ]
    values = [one["values"] for _, one in pairs]
    return Figure(
        name=f"logged-{re.sub(r'[^a-zA-Z0-9_]+', '-', name)}-{workers}",
        title=f"{name}, logged by the script",
        says="; ".join(f"{s.label} from {v[0]:.3g} to {v[-1]:.3g}" for (s, _), v in zip(pairs, values, strict=True))
        + ".",
        chart=Lines("update", name, tuple(lines), whole_x=True),
        table=tables.curve([s for s, _ in pairs], values, name),
    )


def _points(series: Sequence[float], first: int) -> tuple[tuple[float, float], ...]:
    return tuple((float(first + at), series[at]) for at in _thinned(len(series)) if isfinite(series[at]))


def _thinned(count: int) -> list[int]:
    if count <= _POINTS:
        return list(range(count))
    return sorted({round(k * (count - 1) / (_POINTS - 1)) for k in range(_POINTS)})


def to_svg(figure: Figure, width: int = WIDE) -> str:
    """Return the chart as a separate SVG file, in the light colors."""
    return painted(figure.chart.draw(width), LIGHT)


def to_png(figure: Figure) -> bytes:
    """Return the chart as PNG at twice its size, with the fonts of this machine."""
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=to_svg(figure), zoom=2, background=LIGHT["paper"]))
