"""Two records beside each other: the ratio of their rates, and what differs between the two stacks. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.bench.ratios import unpaired_ratio
from paceline.bench.stats import ENOUGH, Interval
from paceline.errors import WrongCommand
from paceline.record import Record
from paceline.report.standing import inside, rate_of

_ABSENT = "-"


@dataclass(frozen=True)
class Difference:
    """A fact that is not the same on both sides."""

    what: str
    first: str
    second: str


@dataclass(frozen=True)
class Comparison:
    """`ratio` is first over second; its interval is over the repeats inside both runs."""

    first: Record
    second: Record
    ratio: Interval
    differences: tuple[Difference, ...]

    @property
    def differs(self) -> bool | None:
        """Whether the rates differ; None where the repeats of a side are too few to tell."""
        fewest = min(len(_samples(record)) for record in (self.first, self.second))
        return None if fewest < ENOUGH else not self.ratio.holds(1.0)


def compare(first: Record, second: Record) -> Comparison:
    for record in (first, second):
        if rate_of(record) is None:
            raise WrongCommand(f"record {record.id} has no rate", why=f"its verdict is {record.verdict}")
    if first.unit != second.unit:
        raise WrongCommand(
            f"{first.id} counts {first.unit}, {second.id} counts {second.unit}", why="their rates have no ratio"
        )
    ratio = unpaired_ratio(_samples(first), _samples(second))
    return Comparison(first, second, ratio, tuple(differences(first, second)))


def _samples(record: Record) -> list[float]:
    return inside(record) or [rate for rate in [rate_of(record)] if rate is not None]


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
