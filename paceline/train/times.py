"""The times of one step, for the meter and for the event stream."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.types import Event, Noted


@dataclass(slots=True)
class StepTimes:
    """Seconds of the last step: waiting for communication, and updating.

    `in_backward` seconds were spent inside backward, which waits for the mean gradient, and `in_forward` inside
    forward, if the schedule crosses the step; the rest was spent inside `step()`.
    """

    exposed: float = 0.0
    update: float = 0.0
    in_forward: float = 0.0
    in_backward: float = 0.0


def note_step(log: list[Noted], step: int, left: float, waited: float, updated: float) -> None:
    """Write the end of a step to the event stream."""
    log += [Event(left, "left", step), Event(waited, "waited", step), Event(updated, "updated", step)]
