"""Drawings of a network sweep: busbw against size for each verb and comm, and the bandwidth of every pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.measure.net.figures import Pair, Row
from paceline.report.chart import Line, Lines
from paceline.report.chart.svg import beside, label, rect, whole
from paceline.report.palette import LIGHT, SERIES, painted

PANEL, COLUMNS = 300, 3
_CELL, _EDGE = 44, 30


def draw(rows: Sequence[Row], pairs: Sequence[Pair]) -> str:
    """Return an SVG with a panel for each verb, and a matrix of pairs if there are any."""
    verbs = dict.fromkeys(row.verb for row in rows)
    panels = [(verb, panel([row for row in rows if row.verb == verb]).draw(PANEL)) for verb in verbs]
    if pairs:
        panels.append(("bandwidth between pairs, GB/s", matrix(pairs)))
    return painted(beside(panels, COLUMNS, paper="paper"), LIGHT)


def panel(rows: Sequence[Row]) -> Lines:
    """Return a chart of one verb's rate with every comm. Both axes are logarithmic."""
    comms = dict.fromkeys(row.comm for row in rows)
    lines = [_line(comm, SERIES[k % len(SERIES)], rows) for k, comm in enumerate(comms)]
    return Lines("bytes", "busbw, GB/s", tuple(lines), logarithmic=True, height=160)


def _line(comm: str, color: str, rows: Sequence[Row]) -> Line:
    mine = sorted((row for row in rows if row.comm == comm), key=lambda row: row.nbytes)
    points = tuple((float(max(row.nbytes, 1)), max(row.busbw, 1.0) / 1e9) for row in mine)
    return Line(comm, color, points, dots=True, says=tuple(f"{comm}, {x:,.0f} bytes: {y:.3g} GB/s" for x, y in points))


def matrix(pairs: Sequence[Pair]) -> str:
    """Return a matrix with a cell for each pair of ranks. A stronger color means a faster pair."""
    ranks = sorted({rank for pair in pairs for rank in (pair.first, pair.second)})
    side = _EDGE + _CELL * len(ranks)
    return whole(side, side, _cells(pairs, {rank: _EDGE + _CELL * k for k, rank in enumerate(ranks)}))


def _cells(pairs: Sequence[Pair], places: dict[int, int]) -> Iterator[str]:
    most = max(pair.bandwidth for pair in pairs) or 1.0
    for rank, place in places.items():
        yield label(place + _CELL / 2, _EDGE - 10, str(rank), anchor="middle")
        yield label(_EDGE - 10, place + _CELL / 2 + 4, str(rank), anchor="end")
    for pair in pairs:
        value, strength = f"{pair.bandwidth / 1e9:.3g}", 0.1 + 0.5 * pair.bandwidth / most
        for a, b in ((pair.first, pair.second), (pair.second, pair.first)):
            more, says = f' fill-opacity="{strength:.2f}"', f"ranks {a} and {b}: {value} GB/s"
            yield rect(places[a], places[b], _CELL - 2, _CELL - 2, "same", round_=3, says=says, more=more)
            yield label(places[a] + _CELL / 2 - 1, places[b] + _CELL / 2 + 3, value, "ink", size=11, anchor="middle")
