"""Choose how long contenders take turns in the next start, from the spread that earlier starts have shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean, median, stdev

from paceline.measure.record.record import Record
from paceline.measure.stats.pairing import best_turns, inner_error
from paceline.race.results.fields import Field
from paceline.race.results.standing import Standing, inside

FIRST = 8.0  # seconds of turns in the first starts
SHORTEST, LONGEST = 4.0, 30.0
ENOUGH_STARTS = 3  # starts after which the spread between starts is known


def next_seconds(field: Field, workers: int) -> float:
    """Return the seconds of turns that make the interval narrowest for the time spent.

    Short starts spend most of their time on imports and building; long starts measure a single start too precisely.
    """
    standings = [one for one in field.at(workers) if one.last.race.get("shared")]
    lengths = [
        seconds for pair in combinations(standings, 2) if (seconds := _best_seconds(*pair, standings)) is not None
    ]
    return min(LONGEST, max(SHORTEST, median(lengths))) if lengths else FIRST


def _best_seconds(one: Standing, rival: Standing, mates: Sequence[Standing]) -> float | None:
    pairs, logs = one.paired(rival), one.logs_against(rival)
    errors = [inner_error(inside(a), inside(b)) for a, b in pairs if len(inside(a)) == len(inside(b))]
    known = [error for error in errors if error is not None]
    if len(logs) < ENOUGH_STARTS or len(known) < ENOUGH_STARTS:
        return None
    inner, turns = fmean(known), round(fmean(len(inside(a)) for a, _ in pairs))
    between = math.sqrt(max(0.0, stdev(logs) ** 2 - inner**2))
    each = sum(_turn_seconds(mate.last) for mate in mates)
    whole = fmean(float(record.race.get("seconds", 0.0)) for record in one.records)
    return best_turns(inner, turns, between, max(1.0, whole - turns * each), each) * each


def _turn_seconds(record: Record) -> float:
    """Return the seconds of one contender's block, with the step before it that is not measured."""
    steps = len(record.series.get("seconds", [])) / max(1, len(inside(record)))
    return (1 + steps) * float(record.step["median"])
