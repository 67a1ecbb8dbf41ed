"""Lines over two axes, linear or logarithmic, with points, intervals and a legend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log10

from paceline.report.chart import legend as legends
from paceline.report.chart.rows import NARROW
from paceline.report.chart.svg import dot, label, line, number, path, stroke, text_width, whole
from paceline.report.chart.ticks import powers, prefixed, step_of, ticks, written

_DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 4", "4 2")  # dash patterns, so that lines differ by more than color


@dataclass(frozen=True)
class Line:
    """Points from left to right. `intervals` are (x, low, high).

    With `dots`, each point shows its value under the pointer.
    """

    name: str
    color: str
    points: tuple[tuple[float, float], ...]
    intervals: tuple[tuple[float, float, float], ...] = ()
    dots: bool = False
    dash: str = ""
    says: tuple[str, ...] = ()
    joined: bool = True  # by a line; else the points stand alone


@dataclass(frozen=True)
class Lines:
    """A chart of lines. `marks`, if set, are the only ticks of x.

    `note` explains the line that the legend leaves out.
    """

    x_axis: str
    y_axis: str
    lines: tuple[Line, ...]
    note: Line | None = None
    marks: tuple[float, ...] = ()
    from_zero: bool = False
    whole_x: bool = False
    logarithmic: bool = False
    height: float = 260

    def draw(self, width: float) -> str:
        entries = tuple(dict.fromkeys((one.name, one.color) for one in self.lines))
        top = legends.height(entries, width) + 26
        low, high, y_ticks, y_texts = self._y(5)
        left = max(text_width(text) for text in y_texts) + 10
        x_low, x_high, x_ticks, x_texts = self._x(4 if width < NARROW else 8)
        right = width - max(10.0, text_width(x_texts[-1]) / 2 + 2)
        bottom = top + self.height
        frame = _Frame((x_low, x_high), (low, high), (left, right), (top, bottom), self.logarithmic)
        parts = [label(0, top - 14, self.y_axis)]
        for value, text in zip(y_ticks, y_texts, strict=True):
            parts += [line(left, frame.y(value), right, frame.y(value), "grid")]
            parts += [label(left - 8, frame.y(value) + 4, text, anchor="end")]
        for value, text in zip(x_ticks, x_texts, strict=True):
            parts += [label(frame.x(value), bottom + 18, text, anchor="middle")]
        parts += [label(left, bottom + 36, self.x_axis), *self._note(frame)]
        for shown in self.lines:
            parts += _drawn(shown, frame)
        return whole(width, bottom + 44, [*legends.draw(entries, width), *parts])

    def _values(self, place: int) -> list[float]:
        shown = [*self.lines, *([self.note] if self.note else [])]
        values = [point[place] for one in shown for point in one.points]
        return values + [side for one in shown for part in one.intervals for side in part[1:]] if place else values

    def _y(self, count: int) -> tuple[float, float, list[float], list[str]]:
        values = self._values(1)
        low, high = min(values), max(values)
        if self.logarithmic:
            marks = powers(low, high, count)
            marks = marks if len(marks) > 1 else [marks[0], 10 * marks[0]]
            return marks[0], marks[-1], marks, [prefixed(value) for value in marks]
        low = min(0.0, low) if self.from_zero else low
        if high <= low:
            low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
        step = step_of(low, high, count)
        marks = ticks(step * (low // step), -step * (-high // step), count + 2)
        return marks[0], marks[-1], marks, written(marks)

    def _x(self, count: int) -> tuple[float, float, list[float], list[str]]:
        values = self._values(0)
        low, high = min(values), max(values)
        if self.logarithmic:
            marks = [value for value in powers(low, high, count) if low <= value <= high] or [low]
            return low, max(high, low * 1.01), marks, [prefixed(value) for value in marks]
        high = high if high > low else low + 1.0
        marks = list(self.marks) or ticks(low, high, count, whole=self.whole_x)
        return low, high, marks, written(marks)

    def _note(self, frame: _Frame) -> Iterator[str]:
        if self.note is not None:
            x, y = frame(self.note.points[-1])
            yield stroke(path(map(frame, self.note.points)), self.note.color, width=1.5, dash="2 4")
            yield label(x, y - 8, self.note.name, anchor="end")


@dataclass(frozen=True)
class _Frame:
    """Converts values to positions in the drawing."""

    xs: tuple[float, float]
    ys: tuple[float, float]
    across: tuple[float, float]
    down: tuple[float, float]
    logarithmic: bool

    def __call__(self, point: tuple[float, float]) -> tuple[float, float]:
        return self.x(point[0]), self.y(point[1])

    def x(self, value: float) -> float:
        return self.across[0] + self._part(value, self.xs) * (self.across[1] - self.across[0])

    def y(self, value: float) -> float:
        return self.down[1] - self._part(value, self.ys) * (self.down[1] - self.down[0])

    def _part(self, value: float, sides: tuple[float, float]) -> float:
        low, high = map(log10, sides) if self.logarithmic else sides
        return ((log10(value) if self.logarithmic else value) - low) / (high - low)


def _drawn(shown: Line, frame: _Frame) -> Iterator[str]:
    if len(shown.points) > 1 and shown.joined:
        yield stroke(path(map(frame, shown.points)), shown.color, dash=shown.dash, says=shown.name)
    for x, low, high in shown.intervals:
        yield line(frame.x(x), frame.y(low), frame.x(x), frame.y(high), shown.color, width=1.6)
    if shown.dots:
        says = shown.says or tuple(f"{shown.name}: {number(y)}" for _, y in shown.points)
        for point, text in zip(shown.points, says, strict=True):
            yield dot(*frame(point), 4, shown.color, says=text)


def dash(number: int) -> str:
    """Return the dash pattern of the n-th line of a chart."""
    return _DASHES[number % len(_DASHES)]
