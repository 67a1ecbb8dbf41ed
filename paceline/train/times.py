"""The times of one step, for the meter and for the event log."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.types import Event, Noted


@dataclass(slots=True)
class StepTimes:
    """Seconds that the last step spent waiting for communication (`exposed`) and updating.

    `in_backward` seconds of this were spent inside backward, which waits for the mean gradient, and `in_forward` inside
    forward, if the schedule crosses the step. The rest was spent inside `step()`.
    """

    exposed: float = 0.0
    update: float = 0.0
    in_forward: float = 0.0
    in_backward: float = 0.0


def note_step(log: list[Noted], step: int, left: float, waited: float, updated: float) -> None:
    """Append the events at the end of a step to the log."""
    log += [Event(left, "left", step), Event(waited, "waited", step), Event(updated, "updated", step)]
