"""The facts that a race wrote into the records of its cells: contender and heat.

    heat        contenders that are compared with each other, even if each changes some settings
    base        the record of a heat with the settings of the race itself: a reference only changes the strategy

Records of plain runs and of older races lack these facts.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.measure.record.record import Record
from paceline.run.run import CHOSEN

ALONE = "one worker"  # the label of the baseline

Heat = tuple[str, str]


def label_of(record: Record) -> str | None:
    """Return the label of the contender in its race, or None."""
    return (record.race.get("label") or None) if heat_of(record) is not None else None


def heat_of(record: Record) -> Heat | None:
    """Return the race, and the heat in it."""
    name, heat = record.race.get("name"), record.race.get("heat")
    return (name, heat) if name is not None and heat is not None else None


def same_result_of(record: Record) -> bool | None:
    """Return whether the run gives the same result as all-reduce, according to the entry of its race in the record.

    Return None if the race did not record it.
    """
    return record.race.get("same_result")


def bases(records: Iterable[Record]) -> dict[Heat, Record]:
    """Return the base of every heat; in a heat without a reference, the record with the fewest settings."""
    heats: dict[Heat, list[Record]] = {}
    for record in records:
        heat = heat_of(record)
        if heat is not None:
            heats.setdefault(heat, []).append(record)
    return {heat: min(members, key=_changes) for heat, members in heats.items()}


def _changes(record: Record) -> tuple[bool, int]:
    run = record.run
    changed = run.model_dump(exclude=set(CHOSEN), exclude_defaults=True)
    return run.reference is None or label_of(record) not in (run.reference.name, ALONE), len(changed)
