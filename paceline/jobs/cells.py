"""What a race will run, decided before anything runs: every cell, in its order.

    heat       one model, one number of workers, one batch size: contenders are compared inside it
    cell       one contender of one heat in one round: a fresh set of processes, one record
    round      every cell once, in an order drawn anew for each round

Every model and batch size also has a one-worker baseline: the plain loop, with as many threads as a worker has.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from paceline._version import VERSION
from paceline.bench.environment import capture
from paceline.bench.redact import redact
from paceline.bench.turns import in_turns
from paceline.compose import OWN
from paceline.contenders import Contender, contenders_of, same_result
from paceline.errors import Refused, WrongCommand
from paceline.grammar import parse
from paceline.jobs.measure import STEPS, check, in_periods, machine, period_of
from paceline.jobs.suite import Suite
from paceline.run import Run

BASELINE = "one worker"
# What changes the work of one worker: efficiency against a baseline without it would say nothing.
_OTHER_WORK = (
    "classes",
    "image_size",
    "sequence_length",
    "threads",
    "precision",
    "compile",
    "memory_format",
    "accumulate",
    "optimizer",
    "source",
    "batch_size",
    "clip_norm",
    "compute",
    "cpus",
)


@dataclass(frozen=True)
class Heat:
    """A setting in which contenders are compared."""

    model: str
    workers: int
    batch: int

    def __str__(self) -> str:
        return f"{self.model}, {self.workers} worker{'s' * (self.workers != 1)}, batch {self.batch}"


@dataclass(frozen=True)
class Cell:
    """One fresh start. `name` is its file."""

    name: str
    heat: Heat
    label: str
    round: int
    run: Run
    script: tuple[str, ...] = ()
    same_result: bool = True

    @property
    def key(self) -> tuple[Heat, str]:
        return self.heat, self.label

    @property
    def title(self) -> str:
        return title_of(self.heat, self.script)


@dataclass(frozen=True)
class Entry:
    """A contender in a heat."""

    heat: Heat
    label: str
    run: Run
    same_result: bool = True
    same_work: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RacePlan:
    suite: Suite
    entries: tuple[Entry, ...]
    cells: tuple[Cell, ...]
    script: tuple[str, ...] = ()

    @property
    def heats(self) -> list[Heat]:
        """Without those that are only there for their baseline."""
        return list(dict.fromkeys(entry.heat for entry in self.entries if entry.label != BASELINE))

    def title(self, heat: Heat) -> str:
        return title_of(heat, self.script)

    @property
    def notes(self) -> list[str]:
        """What is done otherwise than one would think, each told once."""
        few, rounds = self.suite.reference_rounds, self.suite.rounds
        told = [f"{BASELINE} and limit take part in {few} of {rounds} rounds"] if few and few < rounds else []
        return [*told, *dict.fromkeys(note for entry in self.entries for note in entry.notes)]

    def entries_of(self, heat: Heat) -> list[Entry]:
        return [entry for entry in self.entries if entry.heat == heat]

    def baseline_of(self, heat: Heat) -> tuple[Heat, str]:
        return Heat(heat.model, 1, heat.batch), BASELINE

    @property
    def digest(self) -> str:
        """The same for the same race of the same code on the same machine and torch; what a restart looks for."""
        told = [[cell.name, cell.label, cell.run.model_dump(mode="json")] for cell in self.cells]
        code = [_content(path) for path in _inputs(self.script, [cell.run for cell in self.cells])]
        text = json.dumps([told, self.script, self.suite.minutes, VERSION, code, _stack()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def title_of(heat: Heat, script: Sequence[str]) -> str:
    """The heat in words; a script has its own model and batch."""
    if not script:
        return str(heat)
    return f"{shlex.join(script)}, {heat.workers} worker{'s' * (heat.workers != 1)}"


def _stack() -> list[object]:
    """What a rate depends on beside the run, as reports see it: cells on another one are no repeats."""
    found = capture()
    return [machine().gpus, *(found[name] for name in ("processor", "cores", "packages"))]


def _inputs(script: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """The files that words name: a script or module, a network of the user's own, a profile, a replay."""
    files = [word for word in script if word.endswith(".py")][:1]
    modules = [module for flag, module in pairwise(script) if flag == "-m"][:1]
    for run in runs:
        network, compute = parse(run.model).word, parse(run.compute)
        modules += [network.partition(":")[0]] if ":" in network else []
        files += [str(file) for file in (run.profile, *compute.args) if file]
    paths = [module.replace(".", "/") for module in modules]
    return list(dict.fromkeys([*files, *(f"{path}{end}" for path in paths for end in (".py", "/__main__.py"))]))


def _content(path: str) -> str:
    """A file that was edited makes another contender; one that is elsewhere counts by its name."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except (OSError, ValueError):
        return path


def plan(suite: Suite, *, script: Sequence[str] = ()) -> RacePlan:
    """Every cell of a race. Refuses, with every reason, what cannot run."""
    contenders = contenders_of(["limit", "ddp", *suite.contenders])
    _refuse_baseline(contenders)
    heats = [
        Heat(model, workers, batch)
        for model in suite.models
        for batch in suite.batch_sizes
        for workers in suite.workers
    ]
    threads = suite.common.get("threads") or max(1, _cores() // max(suite.workers))
    entries = list(_entries(suite, contenders, heats, threads, script=bool(script)))
    _refuse(entries, unknown=OWN if script else ())
    return RacePlan(suite, tuple(entries), tuple(_cells(suite, entries, tuple(script))), tuple(script))


def _refuse_baseline(contenders: Sequence[Contender]) -> None:
    if any(contender.label == BASELINE for contender in contenders):
        raise WrongCommand(
            f"contender {BASELINE!r}", why="that is what the baseline is called", remedy="another label: NAME: ..."
        )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _entries(
    suite: Suite, contenders: list[Contender], heats: list[Heat], threads: int, *, script: bool
) -> Iterator[Entry]:
    seen: set[tuple[str, int]] = set()
    for heat in heats:
        if (heat.model, heat.batch) not in seen:
            seen.add((heat.model, heat.batch))
            alone = Heat(heat.model, 1, heat.batch)
            plain = base(suite, alone, threads).with_(strategy="limit", nodes=None, comm="auto")
            yield Entry(alone, BASELINE, plain)
        common = base(suite, heat, threads)
        for contender in contenders:
            # On one worker the limit is the baseline, and DDP has nobody to exchange with.
            if heat.workers == 1 and contender.is_reference:
                continue
            yield _entry(contender, heat, common, script=script)


def _entry(contender: Contender, heat: Heat, common: Run, *, script: bool) -> Entry:
    asked = contender.run(common)
    run = asked if script else _in_periods(asked)
    notes = []
    if run != asked:
        notes.append(
            f"{contender.label} repeats itself every {period_of(run)} steps: it is measured over {run.repeats} x "
            f"{run.steps} steps after {run.warmup}, not {asked.repeats} x {asked.steps or STEPS} after {asked.warmup}"
        )
    if run.reference == "ddp" and run.comm == "shm" and "comm" not in dict(contender.choices):
        run = run.with_(comm="auto")
        notes.append(f"{contender.label} talks as torch does: it cannot use shm")
    same_work = all(getattr(run, name) == getattr(common, name) for name in _OTHER_WORK)
    return Entry(heat, contender.label, run, _same_result(run, common), same_work, tuple(notes))


def _in_periods(run: Run) -> Run:
    """What cannot be made is refused in a moment; here it must not be in the way."""
    try:
        return in_periods(run)
    except WrongCommand:
        return run


def _same_result(run: Run, common: Run) -> bool:
    try:
        return same_result(run, common)
    except WrongCommand:
        return False


def base(suite: Suite, heat: Heat, threads: int) -> Run:
    settings = {**suite.common, "threads": threads, "seed": suite.seed}
    return Run(model=heat.model, workers=heat.workers, batch_size=heat.batch, **settings)


def _refuse(entries: Sequence[Entry], unknown: Sequence[str] = ()) -> None:
    """All refusals at once, each with the contender and the heat that it is about, or once if it is about all."""
    problems: dict[str, list[str]] = {}
    for entry in entries:
        try:
            check(entry.run, unknown=unknown)
        except WrongCommand as problem:
            for line in getattr(problem, "problems", None) or [str(problem)]:
                problems.setdefault(line, []).append(f"{entry.label} ({entry.heat})")
    if problems:
        raise Refused(
            told
            for line, whose in problems.items()
            for told in ([line] if len(whose) == len(entries) else [f"{who}: {line}" for who in dict.fromkeys(whose)])
        )


def _cells(suite: Suite, entries: Sequence[Entry], script: tuple[str, ...]) -> Iterator[Cell]:
    for number in range(1, suite.rounds + 1):
        asked = [(index, entry) for index, entry in enumerate(entries) if number in _rounds_of(entry, suite)]
        seed = f"{suite.seed}, round {number}"
        for index, entry in in_turns(asked, lambda place: (place[1].heat.model, place[1].heat.batch), seed):
            heat = entry.heat
            stem = slug(redact(f"{heat.model} {heat.workers}x{heat.batch} {entry.label}"))
            name = f"{stem}-{index + 1}-round{number}"
            yield Cell(name, heat, entry.label, number, entry.run, script, entry.same_result)


def _rounds_of(entry: Entry, suite: Suite) -> Collection[int]:
    """The rounds of an entry: all of them, or a few from the first to the last where a verdict does not need it."""
    few = suite.reference_rounds or suite.rounds
    if few >= suite.rounds or entry.label not in (BASELINE, "limit"):
        return range(1, suite.rounds + 1)
    return {1 + place * (suite.rounds - 1) // max(1, few - 1) for place in range(few)}


def slug(text: str, longest: int = 60) -> str:
    """Letters, digits and dashes, for the name of a file."""
    return re.sub(r"[^\w.]+", "-", text).strip("-.")[:longest]
