"""Charts: each is a spec, drawn as SVG or PNG without a browser, with its table and a sentence beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from paceline.race.results.fields import Field
from paceline.race.results.standing import PARTS, SAME, Standing, mean_parts
from paceline.report import tables
from paceline.report.palette import LIGHT, SERIES
from paceline.report.tables import Table
from paceline.report.trace import Span

WIDE, NARROW = 760, 350
BAND = 34
_POINTS = 150  # of a curve; more cannot be told apart
_LETTER, _LINE = 7.2, 17  # width of a letter and height of a line in a legend, about


@dataclass(frozen=True)
class Figure:
    """A chart with the table behind it. `says` is read out where the chart cannot be seen.

    `legend` has the contenders in it, where they are told by color.
    """

    name: str
    title: str
    says: str
    spec: dict[str, Any]
    table: Table
    legend: tuple[str, ...] = ()

    def at(self, width: int) -> dict[str, Any]:
        """The spec at another width; a narrow one has fewer ticks, and a legend has as many columns as fit."""
        config, height = dict(self.spec["config"]), self.spec["height"]
        if width < WIDE:
            config["axis"] = {**config["axis"], "tickCount": 4, "labelLimit": 118}
        columns, lines = self._legend(width)
        if columns:
            config["legend"] = {**config["legend"], "columns": columns, "columnPadding": 44 if width >= WIDE else 12}
        return {**self.spec, "width": width, "height": height + _LINE * max(0, lines - 2), "config": config}

    def _legend(self, width: int) -> tuple[int, int]:
        """Columns and lines of the legend; no columns where all of it fits into one line."""
        if not self.legend:
            return (0, 1) if width >= WIDE else (3, 2)  # parts of a step
        sizes = [40 + _LETTER * min(len(name), 36) for name in self.legend]
        if sum(sizes) <= width - 60:
            return 0, 1
        columns = int(max(1, (width - 60) // max(sizes)))
        return columns, -(-len(sizes) // columns)


def _colors(names: Sequence[str]) -> alt.Scale:
    return alt.Scale(domain=list(names), range=[LIGHT[name] for name in names])


def _series(standings: Sequence[Standing]) -> alt.Scale:
    """References are grey as in the bars; strategies have a color each."""
    roles = {s.label: _role(s) for s in standings}
    ours = [name for name, role in roles.items() if role in ("same", "changes")]
    colors = {name: SERIES[k % len(SERIES)] for k, name in enumerate(ours)}
    return alt.Scale(domain=list(roles), range=[LIGHT[colors.get(name, role)] for name, role in roles.items()])


def _role(standing: Standing) -> str:
    if standing.reference:
        return "limit" if standing.reference == "limit" else "reference"
    return "same" if standing.group == SAME else "changes"


def _spec(chart: Any, height: float) -> dict[str, Any]:
    font = "Inter, system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"
    quiet = {"labelColor": LIGHT["soft"], "titleColor": LIGHT["soft"], "titleFontWeight": 500}
    size = {"labelFontSize": 12, "titleFontSize": 12}
    line = {"gridColor": LIGHT["grid"], "domainColor": LIGHT["grid"], "tickColor": LIGHT["grid"]}
    chart = chart.properties(width=WIDE, height=height).configure(
        font=font,
        background="transparent",
        padding=4,
        autosize={"type": "fit", "contains": "padding"},
        view={"stroke": None},
        axis={**quiet, **size, **line, "labelLimit": 260, "titlePadding": 10, "tickCount": 6},
        legend={
            **quiet,
            **size,
            "orient": "top",
            "title": None,
            "symbolSize": 110,
            "labelLimit": 260,
            "offset": 8,
            "columnPadding": 20,
        },
    )
    spec: dict[str, Any] = chart.to_dict(validate=False)  # a fifth of a report; a test validates all charts
    return spec


def throughput(field: Field, standings: Sequence[Standing], workers: int, top: float) -> Figure:
    """Bars from zero with whiskers for the interval; `top` is shared by charts that are compared."""
    rows = [
        {
            "name": s.label,
            **_sides(s),
            "told": f"{s.rate.centre:,.0f}",
            "role": _role(s),
        }
        for s in standings
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(y=_names(rows))
    x = alt.X("rate:Q", title=f"{field.unit}/s, 95 % interval", scale=alt.Scale(domain=[0, top * 1.12], nice=False))
    bars = base.mark_bar(height=18, cornerRadiusEnd=3).encode(
        x=x, color=alt.Color("role:N", scale=_colors(["limit", "reference", "same", "changes"]), legend=None)
    )
    whiskers = base.mark_rule(color=LIGHT["ink"], strokeWidth=1.6).encode(x="low:Q", x2="high:Q")
    ends = [base.mark_tick(color=LIGHT["ink"], thickness=1.6, size=9).encode(x=f"{end}:Q") for end in ("low", "high")]
    figures = base.mark_text(align="left", dx=8, color=LIGHT["ink"], fontSize=12, fontWeight=600).encode(
        x="high:Q", text="told:N"
    )
    slug = "same" if standings[0].group == SAME else "changes"
    return Figure(
        name=f"throughput-{slug}-{workers}",
        title="Throughput",
        says=_says(standings, lambda s: f"{s.label} {tables.plain(s.rate, 0)} {field.unit}/s"),
        spec=_spec(bars + whiskers + ends[0] + ends[1] + figures, BAND * len(rows) + 48),
        table=tables.throughput(field, standings),
    )


def _says(standings: Sequence[Standing], word: Any) -> str:
    return "; ".join(word(standing) for standing in standings) + "."


def _names(rows: Sequence[dict[str, Any]]) -> alt.Y:
    order = list(dict.fromkeys(row["name"] for row in rows))
    axis = alt.Axis(ticks=False, domain=False, labelPadding=8, labelColor=LIGHT["ink"], labelFontSize=13)
    return alt.Y("name:N", sort=order, title=None, axis=axis)


def scaling(field: Field) -> Figure | None:
    """Rate over workers with the ideal line; nothing to draw where no contender can be held against one worker."""
    if field.baseline is None or not any(s.workers > 1 and field.speedup(s) for s in field.standings):
        return None
    one, most = field.baseline.rate.centre, field.worlds[-1]
    shown = _of_scaling(field)
    rows = [{"name": s.label, "workers": s.workers, **_sides(s)} for s in shown]
    names = list(dict.fromkeys(s.label for s in shown if field.speedup(s) is not None))
    alone = [{"name": name, "workers": 1, **_sides(field.baseline)} for name in names]
    had = {(row["name"], row["workers"]) for row in rows}
    rows += [row for row in alone if (row["name"], 1) not in had]
    ideal = alt.Chart(alt.Data(values=[{"w": 1, "r": one}, {"w": most, "r": one * most}])).mark_line(
        color=LIGHT["soft"], strokeDash=[2, 4], strokeWidth=1.5
    )
    x = alt.X("workers:Q", title="workers", axis=alt.Axis(values=field.worlds, format="d"))
    y = alt.Y("rate:Q", title=f"{field.unit}/s", scale=alt.Scale(zero=True))
    color = alt.Color("name:N", scale=_series(shown))
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, color=color)
    layers = ideal.encode(x="w:Q", y="r:Q") + base.mark_line(strokeWidth=2.2).encode(y=y)
    layers += base.mark_rule(strokeWidth=1.6).encode(y="low:Q", y2="high:Q")
    layers += base.mark_point(filled=True, size=70, opacity=1).encode(y=y, shape=alt.Shape("name:N", legend=None))
    label = alt.Chart(alt.Data(values=[{"w": most, "r": one * most, "t": "ideal"}]))
    layers += label.mark_text(align="right", dx=-8, dy=-6, color=LIGHT["soft"], fontSize=12).encode(
        x="w:Q", y="r:Q", text="t:N"
    )
    says = _says(field.standings, lambda s: f"{s.label} on {s.workers}: {s.rate.centre:,.0f} {field.unit}/s")
    legend = tuple(dict.fromkeys(s.label for s in shown))
    return Figure("scaling", "Scaling", says, _spec(layers, 320), tables.scaling(field), legend)


def _of_scaling(field: Field) -> list[Standing]:
    """Without a baseline that only ran alone: it is where the lines of the others begin."""
    base = field.baseline
    wide = {s.label for s in field.standings if s.workers > 1}
    return [s for s in field.standings if s is not base or s.label in wide]


def _sides(standing: Standing) -> dict[str, float]:
    rate = standing.rate
    low, high = (rate.centre if side is None else side for side in (rate.low, rate.high))
    return {"rate": rate.centre, "low": max(0.0, low), "high": high}  # a rate is never below zero


def breakdown(standings: Sequence[Standing], workers: int) -> Figure | None:
    shown = [s for s in standings if mean_parts(s)]
    if not shown:
        return None
    rows = [
        {"name": s.label, "part": part, "ms": 1e3 * mean_parts(s)[part], "order": k}
        for s in shown
        for k, part in enumerate(PARTS)
        if part != "exposed" or not tables.waits_inside(s)
    ]
    chart = alt.Chart(alt.Data(values=rows)).mark_bar(height=18, stroke=LIGHT["paper"], strokeWidth=1)
    chart = chart.encode(
        y=_names(rows),
        x=alt.X("ms:Q", title="ms per step, mean over ranks", stack="zero"),
        color=alt.Color("part:N", scale=_colors(PARTS)),
        order="order:Q",
    )
    says = _says(shown, lambda s: f"{s.label} {1e3 * mean_parts(s)['step']:.0f} ms")
    table = tables.breakdown(shown)
    return Figure(f"breakdown-{workers}", "Where a step goes", says, _spec(chart, BAND * len(shown) + 84), table)


def traffic(standings: Sequence[Standing], workers: int) -> Figure | None:
    shown = [s for s in standings if tables.received(s.last) is not None]
    if not any(tables.received(s.last) for s in shown):
        return None
    rows = [{"name": s.label, "mb": (tables.received(s.last) or 0) / 1e6, "role": _role(s)} for s in shown]
    for row in rows:
        row["told"] = f"{row['mb']:.1f}"
    most = max(float(str(row["mb"])) for row in rows)
    base = alt.Chart(alt.Data(values=rows)).encode(y=_names(rows))
    x = alt.X("mb:Q", title="MB received per worker and step", scale=alt.Scale(domain=[0, 1.12 * most], nice=False))
    colors = _colors(["limit", "reference", "same", "changes"])
    bars = base.mark_bar(height=18, cornerRadiusEnd=3).encode(x=x, color=alt.Color("role:N", scale=colors, legend=None))
    text = base.mark_text(align="left", dx=8, color=LIGHT["ink"], fontSize=12, fontWeight=600)
    chart = bars + text.encode(x="mb:Q", text="told:N")
    says = _says(shown, lambda s: f"{s.label} {(tables.received(s.last) or 0) / 1e6:.1f} MB")
    spec = _spec(chart, BAND * len(shown) + 48)
    return Figure(f"bytes-{workers}", "Bytes per step", says, spec, tables.traffic(standings))


def curves(standings: Sequence[Standing], values: Sequence[Sequence[float]], what: str, workers: int) -> Figure | None:
    """One line per contender; `values` are those of its last start."""
    pairs = [(s, series) for s, series in zip(standings, values, strict=True) if len(series) > 1]
    if not pairs:
        return None
    first, axis = (1, "epoch") if what == "accuracy" else (0, "backward")
    ticks = alt.Axis(grid=False, tickMinStep=1, format="d")
    rows = [
        {"name": s.label, "step": first + at, "value": series[at]}
        for s, series in pairs
        for at in _thinned(len(series))
    ]
    names = [s.label for s, _ in pairs]
    scale = _series([s for s, _ in pairs])
    chart = alt.Chart(alt.Data(values=rows)).mark_line(strokeWidth=2, interpolate="monotone")
    chart = chart.encode(
        x=alt.X("step:Q", title=axis, scale=alt.Scale(zero=False, nice=False), axis=ticks),
        y=alt.Y("value:Q", title=what, scale=alt.Scale(zero=False)),
        color=alt.Color("name:N", scale=scale),
        strokeDash=alt.StrokeDash("name:N", sort=names, legend=None),
    )
    says = "; ".join(f"{s.label} from {series[0]:.3g} to {series[-1]:.3g}" for s, series in pairs) + "."
    table = tables.curve([s for s, _ in pairs], [series for _, series in pairs], what)
    return Figure(f"{what}-{workers}", what.capitalize(), says, _spec(chart, 280), table, tuple(names))


def _thinned(count: int) -> list[int]:
    if count <= _POINTS:
        return list(range(count))
    return sorted({round(k * (count - 1) / (_POINTS - 1)) for k in range(_POINTS)})


def timeline(standing: Standing, spans: Sequence[Span]) -> Figure | None:
    """Lanes of one step: what every rank computed, and what was under way meanwhile."""
    if not spans:
        return None
    lanes = {"compute": "", "communication": " sends"}
    rows = [
        {
            "lane": f"rank {s.rank}{lanes[s.lane]}",
            "part": s.name if s.lane == "compute" else "under way",
            "start": 1e3 * s.start,
            "stop": 1e3 * s.stop,
            "name": s.name,
        }
        for s in _merged(spans)
    ]
    order = [f"rank {rank}{lanes[lane]}" for rank, lane in sorted({(s.rank, s.lane) for s in spans}, key=_above)]
    parts = [*PARTS, "under way"]
    scale = alt.Scale(domain=parts, range=[*(LIGHT[part] for part in PARTS), LIGHT["flight"]])
    axis = alt.Axis(ticks=False, domain=False, labelPadding=8, labelColor=LIGHT["ink"], labelFontSize=12)
    chart = alt.Chart(alt.Data(values=rows)).mark_bar(stroke=LIGHT["paper"], strokeWidth=0.5, opacity=1)
    chart = chart.encode(
        x=alt.X("start:Q", title="ms since the step began"),
        x2="stop:Q",
        y=alt.Y("lane:N", sort=order, title=None, axis=axis, scale=alt.Scale(domain=order, paddingInner=0.25)),
        color=alt.Color("part:N", scale=scale),
    )
    length = max(span.stop for span in spans)
    says = f"One step of {standing.label}, {1e3 * length:.1f} ms on {standing.workers} ranks."
    spec = _spec(chart, 26 * len(order) + 84)
    name = "".join(letter if letter.isalnum() else "-" for letter in standing.label)[:40]
    return Figure(f"timeline-{name}-{standing.workers}", "One step", says, spec, tables.timeline(spans))


def _above(lane: tuple[int, str]) -> tuple[int, bool]:
    """Compute stands above what it sends."""
    return lane[0], lane[1] != "compute"


def _merged(spans: Sequence[Span], most: int = 40) -> list[Span]:
    """Compute spans as they are; where a rank had many units under way, only the longest stretches."""
    kept = [span for span in spans if span.lane == "compute"]
    for rank in {span.rank for span in spans}:
        flying = [span for span in spans if span.lane == "communication" and span.rank == rank]
        kept += flying if len(flying) <= most else _union(flying)
    return sorted(kept, key=lambda span: (span.rank, span.lane, span.start))


def _union(spans: Sequence[Span]) -> list[Span]:
    stretches: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        if stretches and span.start <= stretches[-1].stop:
            last = stretches.pop()
            span = Span(last.rank, last.lane, "chunks", last.start, max(last.stop, span.stop), last.step)
        stretches.append(span)
    return stretches


def to_svg(spec: dict[str, Any]) -> str:
    """Drawn here, without a browser and without a network."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]))


def to_png(spec: dict[str, Any]) -> bytes:
    import vl_convert

    paper = {**spec, "background": LIGHT["paper"]}
    return bytes(vl_convert.vegalite_to_png(paper, scale=2, allowed_base_urls=[]))
