"""Compare the records of two runs: the ratio of their rates, and the differences between settings and machines.

Each record comes from one start, a fresh set of processes. Rates vary more between starts than inside one, so intervals
and verdicts are over starts. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import WrongCommand
from paceline.measure.busy import why_busy
from paceline.measure.record.record import Record
from paceline.measure.stats.intervals import ENOUGH, Interval
from paceline.measure.stats.unpaired import unpaired_ratio
from paceline.race.results.standing import rate_of

_ABSENT = "-"
_STACK = ("kind", "device", "processor", "cores", "paceline", "packages torch")


@dataclass(frozen=True)
class Difference:
    """A fact that differs between the two sides."""

    what: str
    first: str
    second: str


@dataclass(frozen=True)
class Comparison:
    """The records of both sides, one per start, at least one per side."""

    first: tuple[Record, ...]
    second: tuple[Record, ...]
    differences: tuple[Difference, ...] = ()

    @property
    def ratio(self) -> Interval:
        """Return the ratio of the first side to the second; without an interval if a side has only one start."""
        return unpaired_ratio(rates(self.first), rates(self.second))

    @property
    def busy(self) -> tuple[str, str]:
        """Return for each side why the machine counted as busy, by its busiest start; empty if it did not."""
        first, second = (_busiest(side) for side in (self.first, self.second))
        return first, second

    @property
    def starts(self) -> int:
        """Return the number of starts of the side that has fewer."""
        return min(len(self.first), len(self.second))

    @property
    def differs(self) -> bool | None:
        """Return whether the rates differ, or None if a side has too few starts to decide."""
        return None if self.starts < ENOUGH else not self.ratio.holds(1.0)


def compare(first: Sequence[Record], second: Sequence[Record]) -> Comparison:
    for record in (*first, *second):
        if rate_of(record) is None:
            raise WrongCommand(f"record {record.id} has no rate", why=f"its verdict is {record.verdict}")
    for side in (first, second):
        _check_repeats(side)
    left, right = first[0], second[0]
    if left.unit != right.unit:
        raise WrongCommand(
            f"{left.id} counts {left.unit}, {right.id} counts {right.unit}", why="their rates have no ratio"
        )
    return Comparison(tuple(first), tuple(second), tuple(differences(left, right)))


def _busiest(records: Sequence[Record]) -> str:
    reasons = [why_busy(record.busy) for record in records]
    return next((why for why in reasons if why), "")


def rates(records: Sequence[Record]) -> list[float]:
    """Return the rate of each start."""
    return [rate for record in records if (rate := rate_of(record)) is not None]


def _check_repeats(records: Sequence[Record]) -> None:
    """Raise if a side mixes different runs or machines, whose starts are not repeats. Seeds may differ."""
    for record in records[1:]:
        for odd in differences(records[0], record):
            if odd.what in _STACK or (odd.what.startswith("run ") and odd.what != "run seed"):
                raise WrongCommand(
                    f"{records[0].id} and {record.id} are on one side",
                    why=f"they are not starts of one run: {odd.what} is {odd.first} and {odd.second}",
                    remedy="give each side the records of one command on one machine",
                )


def differences(first: Record, second: Record) -> Iterator[Difference]:
    """Yield the differences in settings, machine and software."""
    sides = [_facts(record) for record in (first, second)]
    for what in dict.fromkeys([*sides[0], *sides[1]]):
        left, right = (str(side.get(what, _ABSENT)) for side in sides)
        if left != right:
            yield Difference(what, left, right)


def _facts(record: Record) -> dict[str, Any]:
    settings = record.run.model_dump()
    return {
        **{f"run {key.replace('_', ' ')}": value for key, value in settings.items()},
        "kind": record.kind,
        "verdict": record.verdict,
        "comm": record.comm,
        "device": record.device,
        **_flat(record.environment),
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key} "))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
