"""The time of communication: in flight, exposed and overlapped; and the columns of published tables.

leave chunk 0 .......... back
         leave chunk 1 ........... back
|-- backward --------|-- exposed --|
|-- in flight ---------------------|        overlapped = in flight - exposed
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from paceline.measure.record.figures import Communication, TaskColumns

TASK_BATCHES = 50  # batches of a published task
Event = Sequence[Any]  # (seconds, kind, step, what, detail)


def in_flight(events: Sequence[Event]) -> float | None:
    """Return the seconds per step in which at least one unit was under way, or None if no step was observed."""
    steps = {event[2] for event in events if event[1] == "begin"}
    if not steps:
        return None
    open_units: set[tuple[Any, ...]] = set()
    total, since = 0.0, 0.0
    for seconds, kind, *unit in events:
        if kind == "leave":
            since = seconds if not open_units else since
            open_units.add(tuple(unit))
        elif kind in ("arrived", "back") and tuple(unit) in open_units:
            open_units.remove(tuple(unit))
            total += 0.0 if open_units else seconds - since
    return total / len(steps)


def packing(events: Sequence[Event]) -> float | None:
    """Return the seconds per step that finished gradients took to copy into the arena."""
    steps = {event[2] for event in events if event[1] == "begin"}
    if not steps:
        return None
    return float(sum(event[4] for event in events if event[1] == "ready")) / len(steps)


def communication(
    parts: dict[str, float], ranks: Sequence[Sequence[Event]], exposed: Sequence[float], *, separable: bool
) -> Communication:
    """Return seconds per step, and shares. `exposed` has one number per rank, for the steps that the events show.

    `separable` is False for a reference that communicates inside backward; then no figure is claimed.
    """
    if not separable:
        return {"exposed": None, "overlapped": None, "in_flight": None, "share": None, "ratio": None}
    pairs = [(busy, wait) for events, wait in zip(ranks, exposed, strict=True) if (busy := in_flight(events))]
    overlapped = fmean(max(0.0, busy - wait) for busy, wait in pairs) if pairs else 0.0
    return {
        "exposed": parts["exposed"],
        "overlapped": overlapped,
        "in_flight": parts["exposed"] + overlapped,
        "share": parts["exposed"] / parts["step"] if parts["step"] else 0.0,
        "ratio": ratio(parts),
    }


def ratio(parts: dict[str, float]) -> str | None:
    """Return compute to exposed communication as the published ratio 10:k; None if compute was not timed."""
    compute = parts["forward"] + parts["backward"]
    if not compute:
        return None
    compute += parts["update"]
    k = 10 * parts["exposed"] / compute
    return f"10:{k:.0f}" if k >= 1 else f"10:{k:.1f}"


def task(
    parts: dict[str, float], talk: Communication, ranks: Sequence[Sequence[Event]], batches: int = TASK_BATCHES
) -> TaskColumns:
    """Return the published columns: seconds of a task of `batches` batches, and of its parts."""
    packs = [seconds for events in ranks if (seconds := packing(events)) is not None]
    exposed, flying = talk["exposed"], talk["in_flight"]
    return {
        "batches": batches,
        "task": batches * parts["step"],
        "allreduce": None if exposed is None else batches * exposed,
        "in_flight": None if flying is None else batches * flying,
        "pack": batches * fmean(packs) if packs else None,
        "update": batches * parts["update"],
    }
