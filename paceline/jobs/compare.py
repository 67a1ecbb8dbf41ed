"""Starts of one run beside starts of another: the ratio of their rates, and what differs between the two stacks.

A record is one start. Processes differ from start to start by more than blocks inside one do, so intervals and verdicts
are over starts. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.bench.ratios import unpaired_ratio
from paceline.bench.stats import ENOUGH, Interval
from paceline.errors import WrongCommand
from paceline.record import Record
from paceline.report.standing import rate_of

_ABSENT = "-"
_STACK = ("kind", "device", "processor", "cores", "paceline", "packages torch")


@dataclass(frozen=True)
class Difference:
    """A fact that is not the same on both sides."""

    what: str
    first: str
    second: str


@dataclass(frozen=True)
class Comparison:
    """The starts of both sides, at least one of each."""

    first: tuple[Record, ...]
    second: tuple[Record, ...]
    differences: tuple[Difference, ...] = ()

    @property
    def ratio(self) -> Interval:
        """First over second; the interval is over starts, and not known where a side has only one."""
        return unpaired_ratio(rates(self.first), rates(self.second))

    @property
    def starts(self) -> int:
        """Of the side that has fewer."""
        return min(len(self.first), len(self.second))

    @property
    def differs(self) -> bool | None:
        """Whether the rates differ; None where the starts of a side are too few to tell."""
        return None if self.starts < ENOUGH else not self.ratio.holds(1.0)


def compare(first: Sequence[Record], second: Sequence[Record]) -> Comparison:
    for record in (*first, *second):
        if rate_of(record) is None:
            raise WrongCommand(f"record {record.id} has no rate", why=f"its verdict is {record.verdict}")
    for side in (first, second):
        _check_repeats(side)
    one, other = first[0], second[0]
    if one.unit != other.unit:
        raise WrongCommand(
            f"{one.id} counts {one.unit}, {other.id} counts {other.unit}", why="their rates have no ratio"
        )
    return Comparison(tuple(first), tuple(second), tuple(differences(one, other)))


def rates(records: Sequence[Record]) -> list[float]:
    """One number of each start."""
    return [rate for record in records if (rate := rate_of(record)) is not None]


def _check_repeats(records: Sequence[Record]) -> None:
    """Refuse a side of different runs or stacks: its starts would be repeats of nothing. Seeds may differ."""
    for record in records[1:]:
        for odd in differences(records[0], record):
            if odd.what in _STACK or (odd.what.startswith("run ") and odd.what != "run seed"):
                raise WrongCommand(
                    f"{records[0].id} and {record.id} are on one side",
                    why=f"they are not starts of one run: {odd.what} is {odd.first} and {odd.second}",
                    remedy="give each side the records of one command on one machine",
                )


def differences(first: Record, second: Record) -> Iterator[Difference]:
    """What was asked for, where it ran, and with what."""
    sides = [_facts(record) for record in (first, second)]
    for what in dict.fromkeys([*sides[0], *sides[1]]):
        one, other = (str(side.get(what, _ABSENT)) for side in sides)
        if one != other:
            yield Difference(what, one, other)


def _facts(record: Record) -> dict[str, Any]:
    asked = record.run.model_dump()
    return {
        **{f"run {key.replace('_', ' ')}": value for key, value in asked.items()},
        "kind": record.kind,
        "verdict": record.verdict,
        "comm": record.comm,
        "device": record.device,
        **_flat(record.environment),
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{prefix}{key} "))
        else:
            found[f"{prefix}{key}"] = value
    return found
