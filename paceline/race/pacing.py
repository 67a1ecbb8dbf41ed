"""Choose how long contenders take turns in the next start, from the spread and the cost of earlier starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean, median, stdev

from paceline.measure.record.record import Record
from paceline.measure.stats.pairing import best_turns, inner_error
from paceline.race.results.fields import Field
from paceline.race.results.standing import Standing, inside

FIRST = 6.0  # seconds of turns in the first start
SHORTEST, LONGEST = 3.0, 30.0
ENOUGH_STARTS = 3  # to know the spread between starts
PLANNED = 14  # starts that should fit into the minutes; with fewer, intervals are wide because of their small number


def next_seconds(field: Field, workers: int, minutes: float | None = None) -> float:
    """Return the seconds of turns that make the interval narrowest for the time spent.

    Short starts spend most of their time on imports and building; long starts measure a single start too precisely.
    If the race has a budget of minutes, starts are short enough for several of them.
    """
    shared = [one for one in field.at(workers) if one.last.race.get("shared")]
    latest = max((one.last.race.get("round") or 0 for one in shared), default=0)
    standings = [one for one in shared if one.last.race.get("round") == latest]
    if not standings:
        return FIRST
    pairs = combinations(standings, 2)
    lengths = [seconds for pair in pairs if (seconds := _best_seconds(*pair, standings)) is not None]
    fitting = math.inf if minutes is None else 60 * minutes / PLANNED - _idle_seconds(standings)
    return min(LONGEST, max(SHORTEST, min(fitting, median(lengths) if lengths else FIRST)))


def _best_seconds(one: Standing, rival: Standing, mates: Sequence[Standing]) -> float | None:
    pairs, logs = one.paired(rival), one.logs_against(rival)
    errors = [inner_error(inside(a), inside(b)) for a, b in pairs if len(inside(a)) == len(inside(b))]
    known = [error for error in errors if error is not None]
    if len(logs) < ENOUGH_STARTS or len(known) < ENOUGH_STARTS:
        return None
    inner, turns = fmean(known), round(fmean(len(inside(a)) for a, _ in pairs))
    between = math.sqrt(max(0.0, stdev(logs) ** 2 - inner**2))
    each = sum(_turn_seconds(mate.last) for mate in mates)
    return best_turns(inner, turns, between, _idle_seconds(mates), each) * each


def _idle_seconds(mates: Sequence[Standing]) -> float:
    """Return the seconds of the last start in which no turn was taken: imports, building, warm-up, the end."""
    whole = float(mates[0].last.race.get("seconds", 0.0))
    return max(1.0, whole - sum(len(inside(mate.last)) * _turn_seconds(mate.last) for mate in mates))


def _turn_seconds(record: Record) -> float:
    """Return the seconds of one contender's block, with the step before it that is not measured."""
    steps = len(record.series.get("seconds", [])) / max(1, len(inside(record)))
    return (1 + steps) * float(record.step["median"])
