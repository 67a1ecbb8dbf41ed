"""Records sorted into fields: all contenders that answered the same question on the same machine.

records  ->  field (setting, machine)  ->  standings (contender x workers), each with its fresh starts
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.measure.record.record import Record
from paceline.measure.stats.intervals import Interval
from paceline.race.results.heats import Heat, bases, heat_of, label_of, same_result_of
from paceline.race.results.standing import (
    CHANGES,
    SAME,
    Standing,
    contender,
    group,
    name_of,
    rate_of,
    same_work,
    setting,
    spoken_setting,
)
from paceline.run.reference import LIMIT, REFERENCES, ReferenceTraits
from paceline.run.run import Run


@dataclass(frozen=True)
class Field:
    """All contenders that answer the same question, with any number of workers. `run` holds the settings they share."""

    standings: tuple[Standing, ...]
    run: Run
    place: str = ""  # the machine, if fields are of several machines

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (spoken_setting(self.run, self.unit), self.place)))

    @property
    def unit(self) -> str:
        return self.standings[0].first.unit if self.standings else ""

    @property
    def worlds(self) -> list[int]:
        return sorted({standing.workers for standing in self.standings})

    def at(self, workers: int, group: str | None = None) -> list[Standing]:
        return [s for s in self.standings if s.workers == workers and group in (None, s.group)]

    def find(self, name: str, workers: int) -> Standing | None:
        return next((s for s in self.at(workers) if s.name == name), None)

    def reference(self, which: ReferenceTraits, beside: Standing) -> Standing | None:
        """Return the standing of a reference with as many workers as `beside`.

        If there are several, prefer the most similar one.
        """
        standings = [s for s in self.at(beside.workers) if s.reference == which]
        mine = beside.first.run
        return min(
            standings,
            key=lambda s: (
                s.kind != beside.kind,
                s.first.run.nodes != mine.nodes,
                s.first.run.comm != mine.comm,
                s.name != which.name,
            ),
            default=None,
        )

    @property
    def baseline(self) -> Standing | None:
        """Return the one-worker run: the plain loop, which every race has as its limit, or else all-reduce."""
        alone = sorted(self.at(1), key=lambda s: (s.kind != "measured", s.reference != LIMIT, s.name != "allreduce"))
        return alone[0] if alone else None

    def speedup(self, standing: Standing) -> Interval | None:
        """Return the ratio to one worker, or None if there is no such run, or its work differs or is not known."""
        base = self.baseline
        if base is None or not same_work(standing, base):
            return None
        return standing.beside(base)


def fields_of(records: Iterable[Record]) -> list[Field]:
    """Sort records into fields and standings; failed runs have no rate and are left out.

    All contenders of a heat are in one field, even if they change settings. Races with the same base, and plain runs
    with the same settings, are in that field, too.
    """
    ended = [record for record in records if rate_of(record) is not None and record.verdict != "failed"]
    ended.sort(key=lambda record: (record.time, record.id))
    shared = bases(ended)
    grouped: dict[Any, list[Record]] = {}
    runs: dict[Any, Run] = {}
    for record in ended:
        heat = heat_of(record)
        base = record if heat is None else shared[heat]
        where = machine_of(record.environment, record.device)
        question = (setting(base.run, base.environment), record.unit, where)
        grouped.setdefault(question, []).append(record)
        runs.setdefault(question, base.run)
    differing = _differing([where for _, _, where in grouped])
    fields = [
        Field(_standings(chosen), runs[question], ", ".join(question[2][k] for k in differing if question[2][k]))
        for question, chosen in grouped.items()
    ]
    return sorted(fields, key=lambda field: -len(field.standings))


def machine_of(environment: Mapping[str, Any], device: str) -> tuple[str, ...]:
    """Return the facts about a machine that a rate depends on; records that differ in them are not repeats."""
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


def _standings(records: Sequence[Record]) -> tuple[Standing, ...]:
    """Group records by contender; contenders with the same name get names that differ."""
    grouped: dict[Any, list[Record]] = {}
    for record in records:
        grouped.setdefault((record.workers, record.kind, *_is(record).items()), []).append(record)
    named: dict[Any, list[list[Record]]] = {}
    for alike in grouped.values():
        for part in _by_label(alike):
            named.setdefault((_called(part), part[0].workers, part[0].kind), []).append(part)
    standings = []
    for (name, workers, kind), parts in named.items():
        for label, part in zip(_apart(name, parts), parts, strict=True):
            standings.append(Standing(label, workers, kind, _group(part), tuple(part)))
    return tuple(sorted(standings, key=lambda s: (s.workers, s.group != SAME, _place(s))))


def _is(record: Record) -> dict[str, str]:
    """Return the settings that identify a contender, in words that can follow its name."""
    run = record.run
    shown = {f"with {key.replace('_', ' ')}": value for key, value in setting(run, record.environment)}
    return {"as": contender(run), "on": run.nodes or "one node", **shown}


def _by_label(records: Sequence[Record]) -> list[list[Record]]:
    """Group equal runs as one contender, even over several races, unless one race has them under two labels."""
    labels: dict[Heat | None, set[str]] = {}
    parts: dict[str, list[Record]] = {}
    for record in records:
        labels.setdefault(heat_of(record), set()).add(name_of(record))
        parts.setdefault(name_of(record), []).append(record)
    one_race_has_both = any(len(names) > 1 for names in labels.values())
    return list(parts.values()) if one_race_has_both else [list(records)]


def _called(records: Sequence[Record]) -> str:
    """Return the label of a contender if all its races use the same one, else its usual name."""
    labels = {label for record in records if (label := label_of(record))}
    return labels.pop() if len(labels) == 1 else contender(records[0].run)


def _apart(name: str, parts: Sequence[Sequence[Record]]) -> list[str]:
    """Return a distinct name for each contender with the same name: the name and the settings in which they differ."""
    facts = [_is(part[0]) for part in parts]
    differing = [key for key in facts[0] if len({each[key] for each in facts}) > 1]
    return [" ".join([name, *(f"{key} {each[key]}" for key in differing)]) for each in facts]


def _group(records: Sequence[Record]) -> str:
    """Return the group from the race, or else from the records; the run of an older record is composed again."""
    written = [*map(same_result_of, records), *(record.same_result for record in records)]
    same = next((same for same in written if same is not None), None)
    return group(records[0].run) if same is None else SAME if same else CHANGES


def _place(standing: Standing) -> tuple[int, float]:
    """Return a sort key: references first, then by falling rate."""
    references = [*REFERENCES.values(), None]
    return references.index(standing.reference), -standing.rate.centre


def failed(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.verdict == "failed" or rate_of(record) is None]
