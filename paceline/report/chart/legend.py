"""A legend above a chart: one line where everything fits, else columns of equal width."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.report.chart.svg import label, rect, shortened, text_width

LINE = 20
_SWATCH, _GAP = 18, 16
Entry = tuple[str, str]  # name and color


def places(names: Sequence[str], width: float) -> list[tuple[float, int]]:
    """Return the position of each entry: x, and the number of its line."""
    sizes = [_SWATCH + text_width(name) + _GAP for name in names]
    if sum(sizes) - _GAP <= width:
        return [(sum(sizes[:k]), 0) for k in range(len(names))]
    columns = int(max(1, (width + _GAP) // max(sizes)))
    return [(k % columns * (width + _GAP) / columns, k // columns) for k in range(len(names))]


def height(entries: Sequence[Entry], width: float) -> float:
    """Return the height of the legend with the gap below it; 0 without entries."""
    return LINE * (1 + places([name for name, _ in entries], width)[-1][1]) + 8 if entries else 0


def draw(entries: Sequence[Entry], width: float) -> list[str]:
    parts = []
    for (name, color), (x, row) in zip(entries, places([name for name, _ in entries], width), strict=True):
        y = 4 + row * LINE
        parts += [rect(x, y, 11, 11, color, round_=2), label(x + _SWATCH, y + 10, shortened(name, width - x - _SWATCH))]
    return parts
