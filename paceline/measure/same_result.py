"""Decide whether a run gives the result of all-reduce, up to rounding. Only such runs compete on speed alone."""

from __future__ import annotations

from paceline.errors import PacelineError
from paceline.run.compose.compose import axes_of
from paceline.run.run import AXES, Run
from paceline.run.strategies import STRATEGIES


def has_same_result(run: Run) -> bool:
    """Return whether a run gives the result of all-reduce. A combination that this version cannot compose does not."""
    if run.reference:
        return True
    plain = not any(getattr(run, axis) for axis in AXES)
    if plain and (run.strategy is None or run.strategy in STRATEGIES):
        return STRATEGIES[run.strategy or "allreduce"].same_result
    try:
        return axes_of(run).same_result
    except PacelineError:
        return False
