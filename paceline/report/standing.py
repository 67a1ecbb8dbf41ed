"""Records put side by side: a standing is one contender in one setting, with all its repeats.

setting (model, batch, ...)  x  workers  x  contender  ->  rate with its interval
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paceline.bench.ratios import unpaired_ratio
from paceline.bench.stats import ENOUGH, Interval, mean_interval, ratio_interval
from paceline.compose import axes_of
from paceline.errors import PacelineError
from paceline.record import Record
from paceline.run import Run
from paceline.strategies import STRATEGIES

AXES = ("rule", "exchange", "topology", "schedule", "compress", "membership")
# What does not change the question that a run answers.
_ASIDE = {"strategy", *AXES, "comm", "nodes", "workers", "seed", "steps", "epochs", "warmup", "repeats", "deadline"}
_SHOWN = {"threads", "model", "image_size", "sequence_length", "batch_size", "global_batch", "accumulate"}
SAME, CHANGES = "same result as all-reduce", "changes convergence"


def contender(run: Run) -> str:
    """The strategy as people name it, with the axes that were given beside it."""
    given = [str(getattr(run, axis)) for axis in AXES if getattr(run, axis) is not None]
    words = ([run.strategy] if run.strategy else []) + given
    name = " + ".join(words) or "allreduce"
    return name if run.comm == "auto" else f"{name} over {run.comm}"


def group(run: Run) -> str:
    """Whether a run ends where all-reduce ends; what this version does not know counts as a change."""
    if run.reference:
        return SAME
    plain = not any(getattr(run, axis) for axis in AXES)
    if plain and (run.strategy is None or run.strategy in STRATEGIES):
        return SAME if STRATEGIES[run.strategy or "allreduce"].same_result else CHANGES
    try:
        return SAME if axes_of(run).same_result else CHANGES
    except PacelineError:
        return CHANGES


def setting(run: Run, cores: int) -> tuple[tuple[str, Any], ...]:
    """Everything that contenders of one race have in common; threads of a worker as they come out on these cores."""
    values = {k: v for k, v in run.model_dump().items() if k not in _ASIDE}
    values["batch_size"], values["global_batch"] = run.per_worker, None
    values["threads"] = run.threads or max(1, cores // max(1, run.workers))
    return tuple(sorted((key, str(value)) for key, value in values.items()))


def spoken_setting(run: Run, unit: str = "") -> str:
    """The setting in words, as short as it can be; a script that deals its own batches is counted in steps."""
    parts = [run.model]
    if run.image_size:
        parts.append(f"{run.image_size} x {run.image_size}")
    if run.sequence_length:
        parts.append(f"{run.sequence_length} tokens")
    if unit != "step":
        parts.append(f"batch {run.per_worker} per worker")
    if run.accumulate > 1:
        parts.append(f"{run.accumulate} backwards per update")
    rest = run.model_dump(exclude=_ASIDE | _SHOWN, exclude_defaults=True)
    return ", ".join(parts + [f"{k.replace('_', ' ')} {v}" for k, v in rest.items()])


def rate_of(record: Record) -> float | None:
    """Samples per second of the whole job, or None of a run that failed."""
    total = record.rate.get("total") or {}
    value = total.get("mean", total.get("median"))
    return float(value) if value else None


def cores_of(record: Record) -> int:
    return int(record.environment.get("cores") or 1)


def inside(record: Record) -> list[float]:
    """The rate of every repeat inside one set of processes."""
    total = record.rate.get("total") or {}
    values = total.get("repeats") or []
    return [float(value) for value in values if value]


@dataclass(frozen=True)
class Standing:
    """What one contender showed with one number of workers; `records` are fresh starts, oldest first."""

    name: str
    workers: int
    kind: str
    group: str
    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        return self.records[0]

    @property
    def last(self) -> Record:
        return self.records[-1]

    @property
    def label(self) -> str:
        """Its name; what was not measured always says so."""
        return self.name if self.kind == "measured" else f"{self.name} ({self.kind})"

    @property
    def reference(self) -> str | None:
        """limit or ddp, whatever stands beside it in its name."""
        return self.first.run.reference

    @cached_property
    def rates(self) -> list[float]:
        return [rate for record in self.records if (rate := rate_of(record)) is not None]

    @cached_property
    def rate(self) -> Interval:
        """Over fresh starts; of a single start, over what is inside it."""
        if len(self.rates) > 1:
            return mean_interval(self.rates)
        total = self.first.rate["total"]
        return Interval(self.rates[0], total.get("low"), total.get("high"), total.get("confidence", 0.95))

    @property
    def over(self) -> str:
        """What the interval is over."""
        count, steps = len(self.rates), self.first.rate["total"].get("steps")
        if count > 1:
            return f"{count} fresh starts"
        return f"{steps} steps of one start" if steps else f"{len(inside(self.first)) or 1} repeats of one start"

    @cached_property
    def _turns(self) -> dict[Any, float]:
        found = ((record.turn, rate_of(record)) for record in self.records)
        return {turn: rate for turn, rate in found if turn is not None and rate is not None}

    def paired(self, other: Standing) -> list[tuple[float, float]]:
        """Rates of the rounds of a race that both have: they met the same slow minutes."""
        mine, theirs = self._turns, other._turns
        return [(mine[turn], theirs[turn]) for turn in mine if turn in theirs]

    def against(self, other: Standing) -> Interval:
        """The ratio of rates; round by round where both ran in the same rounds of a race."""
        pairs = self.paired(other)
        if len(pairs) > 1:
            return ratio_interval(*map(list, zip(*pairs, strict=True)))
        return unpaired_ratio(self.samples, other.samples)

    def starts_against(self, other: Standing) -> int:
        """How many fresh starts of each are behind that ratio."""
        pairs = len(self.paired(other))
        return pairs if pairs > 1 else min(len(self.rates), len(other.rates))

    def beats(self, other: Standing) -> bool:
        """Surely faster, with enough starts to say so."""
        low = self.against(other).low
        return low is not None and low > 1 and self.starts_against(other) >= ENOUGH

    @property
    def samples(self) -> list[float]:
        return self.rates if len(self.rates) > 1 else inside(self.first) or self.rates


@dataclass(frozen=True)
class Field:
    """All contenders that answered the same question, with any number of workers."""

    standings: tuple[Standing, ...]
    place: str = ""  # where it ran, if that is not the same for all

    @property
    def run(self) -> Run:
        return self.standings[0].first.run

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (spoken_setting(self.run, self.unit), self.place)))

    @property
    def unit(self) -> str:
        return self.standings[0].first.unit

    @property
    def worlds(self) -> list[int]:
        return sorted({standing.workers for standing in self.standings})

    def at(self, workers: int, group: str | None = None) -> list[Standing]:
        return [s for s in self.standings if s.workers == workers and group in (None, s.group)]

    def find(self, name: str, workers: int) -> Standing | None:
        return next((s for s in self.at(workers) if s.name == name), None)

    def reference(self, name: str, beside: Standing) -> Standing | None:
        """limit or ddp with as many workers as `beside`; of several, the one that is most like it."""
        found = [s for s in self.at(beside.workers) if s.reference == name]
        mine = beside.first.run
        return min(
            found,
            key=lambda s: (s.kind != beside.kind, s.first.run.nodes != mine.nodes, s.first.run.comm != mine.comm),
            default=None,
        )

    @property
    def baseline(self) -> Standing | None:
        """One worker: the plain loop, which a race always has as the limit; else all-reduce, which has no partner."""
        alone = sorted(self.at(1), key=lambda s: (s.kind != "measured", s.reference != "limit", s.name != "allreduce"))
        return alone[0] if alone else None


def fields_of(records: Iterable[Record]) -> list[Field]:
    """Records sorted into fields and standings; failed runs have no rate and are in none."""
    found: dict[Any, dict[Any, list[Record]]] = {}
    for record in sorted(records, key=lambda record: (record.time, record.id)):
        if rate_of(record) is None or record.verdict == "failed":
            continue
        key = (contender(record.run), record.workers, record.kind, record.run.nodes)
        where = machine_of(record.environment, record.device)
        asked = (setting(record.run, cores_of(record)), record.unit, where)
        found.setdefault(asked, {}).setdefault(key, []).append(record)
    differing = _differing([where for _, _, where in found])
    fields = [
        Field(_standings(by_contender), ", ".join(where[k] for k in differing if where[k]))
        for (_, _, where), by_contender in found.items()
    ]
    return sorted(fields, key=lambda field: -len(field.standings))


def machine_of(environment: Mapping[str, Any], device: str) -> tuple[str, ...]:
    """What a rate depends on beside the run: records of different machines or versions are not repeats."""
    packages = environment.get("packages") or {}
    return (
        device,
        str(environment.get("processor") or ""),
        f"{environment.get('cores') or '?'} cores",
        f"paceline {environment.get('paceline') or '?'}",
        f"torch {packages.get('torch') or '?'}",
    )


def _differing(machines: Sequence[tuple[str, ...]]) -> list[int]:
    return [k for k, values in enumerate(zip(*machines, strict=True)) if len(set(values)) > 1]


def _standings(found: dict[Any, list[Record]]) -> tuple[Standing, ...]:
    """Pretended nodes are named where a contender was seen on several."""
    places: dict[Any, set[str | None]] = {}
    for name, workers, kind, nodes in found:
        places.setdefault((name, workers, kind), set()).add(nodes)
    standings = []
    for (name, workers, kind, nodes), records in found.items():
        told = f"{name} on {nodes or 'one node'}" if len(places[name, workers, kind]) > 1 else name
        standings.append(Standing(told, workers, kind, group(records[0].run), tuple(records)))
    return tuple(sorted(standings, key=lambda s: (s.workers, s.group != SAME, _place(s))))


def _place(standing: Standing) -> tuple[int, float]:
    """References first, then the fastest first."""
    order = {"limit": 0, "ddp": 1}.get(standing.reference or "", 2)
    return order, -standing.rate.centre


def failed(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.verdict == "failed" or rate_of(record) is None]
