"""Several configurations side by side: fresh processes, interleaved, so that slow minutes hit all of them alike.

round 1:  limit  ddp  allreduce      round 2:  limit  ddp  allreduce      ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from paceline.bench.stats import Interval, mean_interval, ratio_interval
from paceline.jobs.events import write_events
from paceline.jobs.measure import OnLine, check, measure
from paceline.record import Record, write
from paceline.run import Run

CONTENDERS = ("limit", "ddp", "allreduce")
BASE = "ddp"


@dataclass
class Standing:
    """What one contender has shown so far."""

    name: str
    records: list[Record] = field(default_factory=list)

    def rates(self) -> list[float]:
        return [record.rate["total"]["mean"] for record in self.records]

    def rate(self) -> Interval:
        return mean_interval(self.rates())

    def against(self, other: Standing) -> Interval:
        count = min(len(self.records), len(other.records))
        return ratio_interval(self.rates()[:count], other.rates()[:count])


@dataclass
class Race:
    standings: list[Standing]
    folder: Path
    rounds: int

    def of(self, name: str) -> Standing:
        return next(standing for standing in self.standings if standing.name == name)


def contender(base: Run, name: str) -> Run:
    return base.with_(strategy=name)


def race(
    base: Run,
    names: Sequence[str] = CONTENDERS,
    *,
    rounds: int,
    folder: Path,
    on_done: Callable[[Race, str, int], None] | None = None,
    on_line: OnLine | None = None,
) -> Race:
    """Run every contender once per round; a record of each is in the folder."""
    runs = {name: contender(base, name) for name in names}
    for run in runs.values():
        check(run)
    result = Race([Standing(name) for name in names], folder / f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}", rounds)
    result.folder.mkdir(parents=True, exist_ok=True)
    for number in range(rounds):
        for standing in result.standings:
            record, events = measure(runs[standing.name], on_line)
            path = result.folder / f"{standing.name}-{number + 1}.json"
            record = record.model_copy(update={"events": write_events(path, events)})
            write(path, record.to_json())
            standing.records.append(record)
            if on_done is not None:
                on_done(result, standing.name, number)
    return result
