"""Drawings of a network sweep: busbw against size for each verb and comm, and the bandwidth of every pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from paceline.measure.net.figures import Pair, Row
from paceline.report.plots import to_svg


def draw(rows: Sequence[Row], pairs: Sequence[Pair]) -> str:
    """Return an SVG with a panel for each verb, and a matrix of pairs if there are any."""
    charts: Any = curve(rows)
    if pairs:
        charts = alt.vconcat(charts, matrix(pairs))
    return to_svg(charts.to_dict())


def curve(rows: Sequence[Row]) -> Any:
    values = [
        {"verb": row.verb, "comm": row.comm, "size": row.nbytes, "busbw": max(row.busbw, 1.0) / 1e9} for row in rows
    ]
    base = alt.Chart(alt.Data(values=values)).mark_line(point=True)
    return (
        base.encode(
            x=alt.X("size:Q", scale=alt.Scale(type="log"), title="bytes"),
            y=alt.Y("busbw:Q", scale=alt.Scale(type="log"), title="busbw (GB/s)"),
            color=alt.Color("comm:N", title="comm"),
        )
        .properties(width=220, height=160)
        .facet("verb:N", columns=3)
    )


def matrix(pairs: Sequence[Pair]) -> Any:
    values = [
        {"a": a, "b": b, "gbs": pair.bandwidth / 1e9}
        for pair in pairs
        for a, b in ((pair.first, pair.second), (pair.second, pair.first))
    ]
    base = alt.Chart(alt.Data(values=values)).mark_rect()
    return base.encode(
        x=alt.X("a:O", title="rank"),
        y=alt.Y("b:O", title="rank"),
        color=alt.Color("gbs:Q", title="GB/s"),
    ).properties(width=220, height=220, title="bandwidth between pairs")
