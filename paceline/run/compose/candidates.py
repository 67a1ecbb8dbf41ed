"""The candidates of schedule auto in a run: which it tries, and why it leaves some out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from paceline.protocols import Schedule
from paceline.run.axes import Axes
from paceline.run.compose.matching import AXES_CHECKS


def tried(axes: Axes) -> tuple[Schedule, ...]:
    """Return the schedules that a run tries, in order. Empty if there is nothing to try.

    Only a mean gradient is planned with measured times, so other rules try nothing.
    """
    if not axes.rule.averages_gradients:
        return ()
    return tuple(schedule for schedule in axes.schedule.candidates() if _reason(axes, schedule) is None)


def left_out(axes: Axes) -> Mapping[str, list[Schedule]]:
    """Return the candidates that do not go with the other members of a run, by the reason."""
    reasons: dict[str, list[Schedule]] = {}
    for schedule in axes.schedule.candidates() if axes.rule.averages_gradients else ():
        reason = _reason(axes, schedule)
        if reason is not None:
            reasons.setdefault(reason, []).append(schedule)
    return reasons


def _reason(axes: Axes, schedule: Schedule) -> str | None:
    """Return why a run with this schedule would be refused, or None."""
    changed = replace(axes, schedule=schedule)
    return next((problem.why for check in AXES_CHECKS for problem in check(changed)), None)


def notes(axes: Axes) -> Iterator[str]:
    """Yield what a run tries and what it does not."""
    schedules = tried(axes)
    if schedules:
        yield f"schedule {axes.schedule} tries {_listed(schedules)}"
    if schedules and not axes.schedule.crosses_step:
        why = "p.grad must be the mean when backward returns"
        yield f"schedule {axes.schedule} does not try schedules that cross the step: {why}; auto(crossing=true) does"
    for reason, refused in left_out(axes).items():
        yield f"schedule {axes.schedule} does not try {_listed(refused)}: {reason}"


def _listed(schedules: tuple[Schedule, ...] | list[Schedule]) -> str:
    *most, last = map(str, schedules)
    return f"{', '.join(most)} and {last}" if most else last
