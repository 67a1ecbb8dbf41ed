"""Format ratios, counts and lists of names for sentences."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.measure.stats.intervals import Interval


class Workers(int):
    """A number of workers that prints as "1 worker" or "2 workers"."""

    def __str__(self) -> str:
        return f"{int(self)} worker{'s' * (self != 1)}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


def interval(ratio: Interval) -> str:
    """Format a ratio with its interval: 1.06x, 95 % interval 0.86 to 1.32; close to 1 with a third decimal."""
    digits = 3 if abs(ratio.centre - 1) < 0.015 else 2
    centre = f"{ratio.centre:.{digits}f}x"
    if ratio.low is None or ratio.high is None:
        return f"{centre}, without an interval"
    return f"{centre}, {100 * ratio.confidence:.0f} % interval {ratio.low:.{digits}f} to {ratio.high:.{digits}f}"


def bracket(ratio: Interval) -> str:
    """Format the ends of an interval: 0.99 to 1.02."""
    if ratio.low is None or ratio.high is None:
        return "without an interval"
    digits = 3 if abs(ratio.centre - 1) < 0.015 else 2
    return f"{ratio.low:.{digits}f} to {ratio.high:.{digits}f}"


def times(ratio: Interval, what: str) -> str:
    """Format a ratio to another rate: 1.06x the rate of ddp (95 % interval 0.86 to 1.32)."""
    centre, _, rest = interval(ratio).partition(", ")
    return f"{centre} {what} ({rest})"


def several(ratios: Sequence[tuple[Interval, str]]) -> str:
    """Format ratios of one rate to others: 1.26x ddp (95 % interval 1.20 to 1.33), 1.07x wfbp (1.01 to 1.13)."""
    texts, explained = [], False
    for ratio, name in ratios:
        texts.append(
            f"{interval(ratio).partition(', ')[0]} {name} ({bracket(ratio)})" if explained else times(ratio, name)
        )
        explained = explained or ratio.low is not None
    return ", ".join(texts)


def share(ratio: Interval) -> str:
    """Format a ratio in percent, with its interval in brackets."""
    if ratio.low is None or ratio.high is None:
        return f"{100 * ratio.centre:.0f} %"
    return f"{100 * ratio.centre:.0f} % [{100 * ratio.low:.0f}, {100 * ratio.high:.0f}]"


def listed(names: Sequence[str]) -> str:
    """Join names with commas, and with "and" before the last."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
