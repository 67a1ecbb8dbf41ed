"""Rows over one horizontal axis: bars, intervals, a dot per value, and hills that show how values are spread.

allreduce  |==========|--o--|  196
                    . :..
ddp        |=======|-o-|       178
           0    50   100   150
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.report.chart import legend as legends
from paceline.report.chart.svg import dot, fill, label, line, path, rect, shortened, text_width, whole
from paceline.report.chart.ticks import ticks, written

NARROW = 500  # narrower charts have less room for names and ticks
_RIM = ' stroke="var(--paper)" stroke-width="0.6"'  # gap between bars that would touch
_HEAD, _GAP, _STRIP, _NAME = 22, 14, 12, 18  # heights: a heading, between rows, dots below a bar, a name above a row


@dataclass(frozen=True)
class Bar:
    start: float
    stop: float
    color: str
    says: str = ""


@dataclass(frozen=True)
class Interval:
    low: float
    high: float
    says: str = ""


@dataclass(frozen=True)
class Dot:
    at: float
    color: str
    says: str = ""


@dataclass(frozen=True)
class Hill:
    """A histogram of values: a height between 0 and 1 for each bin. Bins have equal length and begin at `start`."""

    start: float
    step: float
    heights: tuple[float, ...]
    color: str
    says: str = ""


@dataclass(frozen=True)
class Tick:
    """A line across the row."""

    at: float
    says: str = ""


Mark = Bar | Interval | Dot | Hill | Tick


@dataclass(frozen=True)
class Row:
    """One row of the chart. `value` is written after its last mark, `heading` above the first row of a group."""

    name: str
    marks: tuple[Mark, ...]
    value: str = ""
    heading: str = ""

    @property
    def end(self) -> float:
        return max((_end(mark) for mark in self.marks), default=0.0)

    @property
    def has_strip(self) -> bool:
        """Whether dots are drawn in a separate strip below the bars."""
        return any(isinstance(m, Dot) for m in self.marks) and any(isinstance(m, Bar) for m in self.marks)


def _end(mark: Mark) -> float:
    if isinstance(mark, Dot | Tick):
        return mark.at
    if isinstance(mark, Hill):
        return mark.start + mark.step * len(mark.heights)
    return mark.stop if isinstance(mark, Bar) else mark.high


@dataclass(frozen=True)
class Rows:
    """A chart of rows from `start` to `end` of the axis; `thick` is the height of a bar."""

    axis: str
    rows: tuple[Row, ...]
    legend: tuple[legends.Entry, ...] = ()
    start: float = 0.0
    end: float | None = None
    thick: float = 18
    gap: float = _GAP

    def draw(self, width: float) -> str:
        names = max((text_width(row.name, 13) for row in self.rows), default=0)
        above = names + 10 > (0.34 if width < NARROW else 0.4) * width
        left = 5.0 if above else names + 10
        right = max(18.0, *(text_width(row.value) + 14 for row in self.rows if row.value), 0.0)
        scale = _Scale(self.start, self._end, left, max(left + 40, width - right))
        top = legends.height(self.legend, width)
        parts, bottom = self._rows(scale, top, above, width)
        grid = _axis(scale, top, bottom, self.axis, 4 if width < NARROW else 7)
        return whole(width, bottom + 44, [*legends.draw(self.legend, width), *grid, *parts])

    @property
    def _end(self) -> float:
        end = max((row.end for row in self.rows), default=0.0) if self.end is None else self.end
        return end if end > self.start else self.start + 1.0

    def _rows(self, scale: _Scale, top: float, above: bool, width: float) -> tuple[list[str], float]:
        parts: list[str] = []
        y = top + self.gap / 2
        for number, row in enumerate(self.rows):
            if row.heading:
                y += (8 if number else 0) + _HEAD
                parts.append(label(0, y - 8, shortened(row.heading, width, 13), "ink", size=13, bold=True))
            if above and row.name:
                y += _NAME
                parts.append(label(0, y - 5, shortened(row.name, width, 13), "ink", size=13))
            elif row.name:
                parts.append(label(scale.left - 10, y + self.thick / 2 + 4.5, row.name, "ink", size=13, anchor="end"))
            parts += self._marks(row, scale, y)
            y += self.thick + (_STRIP if row.has_strip else 0) + self.gap
        return parts, y - self.gap / 2

    def _marks(self, row: Row, scale: _Scale, y: float) -> Iterator[str]:
        middle = y + self.thick / 2
        lane = y + self.thick + _STRIP / 2 + 1 if row.has_strip else middle
        for mark in row.marks:
            if isinstance(mark, Bar):
                x, stop = scale(mark.start), scale(mark.stop)
                corner = min(2.0, (stop - x) / 3)
                yield rect(x, y, stop - x, self.thick, mark.color, round_=corner, says=mark.says, more=_RIM)
            elif isinstance(mark, Interval):
                yield from _whisker(scale(mark.low), scale(mark.high), middle)
            elif isinstance(mark, Dot):
                yield dot(scale(mark.at), lane, 3.2, mark.color, says=mark.says, more=' fill-opacity="0.7"')
            elif isinstance(mark, Tick):
                yield rect(scale(mark.at) - 0.8, y, 1.6, self.thick, "ink", says=mark.says)
            else:
                yield fill(_outline(mark, scale, y + self.thick, self.thick), mark.color, says=mark.says)
        if row.value:
            yield label(scale(row.end) + 8, middle + 4.5, row.value, "ink", bold=True)


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    left: float
    right: float

    def __call__(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return self.left + (inside - self.low) / (self.high - self.low) * (self.right - self.left)


def _whisker(low: float, high: float, y: float) -> Iterator[str]:
    yield line(low, y, high, y, "ink", width=1.6)
    for x in (low, high):
        yield line(x, y - 4.5, x, y + 4.5, "ink", width=1.6)


def _outline(hill: Hill, scale: _Scale, floor: float, height: float) -> str:
    """Return the outline of a histogram, closed along its base line."""
    points = [(scale(hill.start), floor)]
    for k, part in enumerate(hill.heights):
        edges = (scale(hill.start + k * hill.step), scale(hill.start + (k + 1) * hill.step))
        points += [(x, floor - part * height) for x in edges]
    return path([*points, (points[-1][0], floor)], close=True)


def _axis(scale: _Scale, top: float, bottom: float, title: str, count: int) -> Iterator[str]:
    values = ticks(scale.low, scale.high, count)
    for value, text in zip(values, written(values), strict=True):
        yield line(scale(value), top, scale(value), bottom, "grid")
        yield label(scale(value), bottom + 16, text, anchor="middle")
    yield label(scale.left, bottom + 36, shortened(title, scale.right - scale.left + 20))


def spread(values: Sequence[float], low: float, high: float, count: int = 60) -> tuple[float, ...]:
    """Return the heights of a histogram from low to high. The largest height is 1, and values outside are left out."""
    heights = [0] * count
    for value in values:
        if low <= value <= high and high > low:
            heights[min(count - 1, int((value - low) / (high - low) * count))] += 1
    most = max(heights) or 1
    return tuple(height / most for height in heights)
