"""Whether a run ends where all-reduce ends, up to rounding; only such runs compete on speed alone."""

from __future__ import annotations

from paceline.errors import PacelineError
from paceline.run.compose.compose import axes_of
from paceline.run.run import AXES, Run
from paceline.run.strategies import STRATEGIES


def has_same_result(run: Run) -> bool:
    """Look up the strategy, or compose the axes; a combination that this version cannot compose counts as a change."""
    if run.reference:
        return True
    plain = not any(getattr(run, axis) for axis in AXES)
    if plain and (run.strategy is None or run.strategy in STRATEGIES):
        return STRATEGIES[run.strategy or "allreduce"].same_result
    try:
        return axes_of(run).same_result
    except PacelineError:
        return False
