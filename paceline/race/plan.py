"""Plan a race before anything runs: every cell, in order.

    heat       one model, one number of workers, one batch size: contenders are compared inside it
    cell       one contender of one heat in one round: one record
    start      a fresh set of processes: the cells of a heat that take turns in it, or one cell that runs isolated
    round      every cell once, starts in a new random order

Every model and batch size also has a one-worker baseline: the plain loop, with the threads of one worker.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from paceline._version import VERSION
from paceline.cluster.environment import capture
from paceline.cluster.machine import machine
from paceline.errors import Refused, WrongCommand
from paceline.files.read import read_bytes
from paceline.files.redact import redact
from paceline.measure.periods import STEPS, in_periods, period_of
from paceline.menu.grammar import parse
from paceline.race.cells import BASELINE, Cell, Entry, Heat, title_of
from paceline.race.contenders import Contender, contenders_of, same_result
from paceline.race.suite import Suite
from paceline.race.turns import in_turns
from paceline.run.axes import Composed
from paceline.run.compose.compose import OWN, check, servers_of
from paceline.run.fields import LARGEST_SEED, Kind
from paceline.run.reference import LIMIT, REFERENCES, is_bound
from paceline.run.run import Run, fields


@dataclass(frozen=True)
class RacePlan:
    suite: Suite
    entries: tuple[Entry, ...]
    cells: tuple[Cell, ...]
    script: tuple[str, ...] = ()

    @property
    def heats(self) -> list[Heat]:
        """Return the heats, without those that exist only for their baseline."""
        return list(dict.fromkeys(entry.heat for entry in self.entries if entry.label != BASELINE))

    def title(self, heat: Heat) -> str:
        return title_of(heat, self.script)

    @property
    def notes(self) -> list[str]:
        """Return notes about surprising choices of the plan, each once."""
        few, rounds = self.suite.reference_rounds, self.suite.rounds
        limited = bool(few and rounds and few < rounds)
        few_rounds = [f"{BASELINE} and limit take part in {few} of {rounds} rounds"] if limited else []
        return [*few_rounds, *self._isolated(), *dict.fromkeys(note for entry in self.entries for note in entry.notes)]

    def _isolated(self) -> Iterator[str]:
        """Name contenders that run isolated beside others that take turns."""
        entries = [entry for entry in self.entries if entry.label != BASELINE]
        if all(entry.alone for entry in entries):
            return
        reasons = {entry.label: entry.alone for entry in entries if entry.alone and entry.heat.workers > 1}
        for label, why in reasons.items():
            yield f"{label} runs isolated, in processes of its own: {why}"

    @property
    def rounds(self) -> int:
        """Return the number of rounds, or the most that there can be."""
        return self.suite.rounds or max((cell.round for cell in self.cells), default=0)

    def cells_in(self, number: int) -> list[Cell]:
        return self._by_round.get(number, [])

    @cached_property
    def _by_round(self) -> dict[int, list[Cell]]:
        groups: dict[int, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(cell.round, []).append(cell)
        return groups

    @cached_property
    def cells_by_key(self) -> dict[tuple[Heat, str], list[Cell]]:
        """Return the cells of each contender, by round."""
        groups: dict[tuple[Heat, str], list[Cell]] = {}
        for cell in sorted(self.cells, key=lambda cell: cell.round):
            groups.setdefault(cell.key, []).append(cell)
        return groups

    def pairs(self, heat: Heat) -> int:
        """Return the number of comparisons that the race decides in a heat, which share its error.

        Contenders with the same result are compared with each other. A contender that changes convergence is compared
        with the best of them.
        """
        entries = [entry for entry in self.entries_of(heat) if not is_bound(entry.run.strategy)]
        same = sum(entry.same_result for entry in entries)
        return max(1, same * (same - 1) // 2 + len(entries) - same)

    def entries_of(self, heat: Heat) -> list[Entry]:
        return [entry for entry in self.entries if entry.heat == heat]

    def baseline_of(self, heat: Heat) -> tuple[Heat, str]:
        return Heat(heat.model, 1, heat.batch), BASELINE

    @property
    def digest(self) -> str:
        """Return a digest of race, code, machine and torch version, by which a restart finds its folder."""
        cells = [[cell.name, cell.label, cell.run.model_dump(mode="json")] for cell in self.cells]
        code = [_content(path) for path in _inputs(self.script, [cell.run for cell in self.cells])]
        # A race without fixed rounds continues even if the next command gives it other minutes.
        minutes = None if self.suite.until_sure else self.suite.minutes
        how = [minutes, self.suite.margin, self.suite.isolated]
        text = json.dumps([cells, self.script, how, VERSION, code, _stack()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _stack() -> list[object]:
    """Return the hardware and packages that a rate depends on; cells on different ones are not repeats."""
    facts = capture()
    return [machine().gpus, *(facts[name] for name in ("processor", "cores", "packages"))]


def _inputs(script: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Return the files that the race names: a script or module, a user's own network, a profile, a replay."""
    files = [word for word in script if word.endswith(".py")][:1]
    modules = [module for flag, module in pairwise(script) if flag == "-m"][:1]
    for run in runs:
        network, compute = parse(run.model).word, parse(run.compute)
        modules += [network.partition(":")[0]] if ":" in network else []
        files += [str(file) for file in (run.profile, *compute.args) if file]
    paths = [module.replace(".", "/") for module in modules]
    return list(dict.fromkeys([*files, *(f"{path}{end}" for path in paths for end in (".py", "/__main__.py"))]))


def _content(path: str) -> str:
    """Return a digest of a file, so that an edited file counts as a different race; a missing file counts by name."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except WrongCommand:
        return path


MOST_ENTRIES, MOST_CELLS = 1_000, 50_000
MOST_ROUNDS = 60  # rounds of a race that continues until it is decided
FEW_ROUNDS = 3  # rounds with the baseline, in such a race
LIMIT_ROUNDS = 3  # rounds with a limit that takes turns, in such a race: enough for an interval, and it decides nothing
LONGEST_PERIOD = 16  # steps of a rule's period; with a longer one, a start would have only a few turns
_OF_A_PROCESS = (*fields(Kind.LAUNCHER), "compile")  # what all contenders of a process share


def plan(suite: Suite, *, script: Sequence[str] = ()) -> RacePlan:
    """Plan every cell of a race. Raises with all reasons if a cell cannot run."""
    contenders = contenders_of([*REFERENCES, *suite.contenders])
    _refuse_baseline(contenders)
    heats = [
        Heat(model, workers, batch)
        for model in suite.models
        for batch in suite.batch_sizes
        for workers in suite.workers
    ]
    _refuse_many(len(heats) * len(contenders), suite.rounds or 1)
    threads = suite.common.get("threads") or max(1, _cores() // max(suite.workers))
    entries = list(_entries(suite, contenders, heats, threads, script=bool(script)))
    composed = _composed(entries, unknown=OWN if script else ())
    return RacePlan(suite, tuple(entries), tuple(_cells(suite, entries, composed, tuple(script))), tuple(script))


def _refuse_baseline(contenders: Sequence[Contender]) -> None:
    if any(contender.label == BASELINE for contender in contenders):
        raise WrongCommand(
            f"contender {BASELINE!r}", why="the baseline has this label", remedy="another label: NAME: ..."
        )


def _refuse_many(entries: int, rounds: int) -> None:
    if entries > MOST_ENTRIES or entries * rounds > MOST_CELLS:
        raise WrongCommand(
            f"a race of {entries:,} contenders in {rounds:,} rounds",
            why=f"at most {MOST_ENTRIES:,} contenders and {MOST_CELLS:,} fresh starts can be planned",
            remedy="fewer contenders, models, workers, batch sizes or rounds",
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
            plain = base(suite, alone, threads).with_(strategy=LIMIT.name, nodes=None, comm="auto")
            yield Entry(alone, BASELINE, plain, alone="one worker")
        common = base(suite, heat, threads)
        for contender in contenders:
            # With one worker the limit equals the baseline, and DDP has no peers.
            if heat.workers == 1 and contender.is_reference:
                continue
            entry = _entry(contender, heat, common, script=script)
            why = "it is a script" if script else "--isolated" if suite.isolated else _why_alone(entry.run, common)
            yield replace(entry, alone=why)


def _why_alone(run: Run, common: Run) -> str:
    """Return why a contender cannot take turns with others in one process; empty if it can."""
    if run.workers == 1:
        return "one worker"
    if run.epochs is not None:
        return "it trains whole epochs"
    try:
        servers, period = servers_of(run), period_of(run)
    except WrongCommand:
        return "it cannot run"
    if servers:
        return "it has dedicated servers"
    if period > LONGEST_PERIOD:
        return f"it repeats itself every {period} steps"
    differing = [name for name in _OF_A_PROCESS if getattr(run, name) != getattr(common, name)]
    return f"its {', '.join(differing)} would change the others' processes" if differing else ""


def _entry(contender: Contender, heat: Heat, common: Run, *, script: bool) -> Entry:
    requested = contender.run(common)
    run = requested if script else _in_periods(requested)
    notes = []
    if run != requested:
        notes.append(
            f"{contender.label} repeats itself every {period_of(run)} steps: it is measured over {run.repeats} x "
            f"{run.steps} steps after {run.warmup}, "
            f"not {requested.repeats} x {requested.steps or STEPS} after {requested.warmup}"
        )
    if run.reference and run.reference.comm_on_cpu and run.comm == "shm" and "comm" not in dict(contender.choices):
        run = run.with_(comm="auto")
        notes.append(f"{contender.label} talks as torch does: it cannot use shm")
    return Entry(heat, contender.label, run, _same_result(run, common), tuple(notes))


def _in_periods(run: Run) -> Run:
    """Round the steps up to whole periods of the rule. Errors are left to the check that follows."""
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


def _composed(entries: Sequence[Entry], unknown: Sequence[str] = ()) -> list[Composed]:
    """Compose the run of each entry. Raises all problems at once, each with its contender and heat.

    A problem of all contenders is named once.
    """
    problems: dict[str, list[Entry]] = {}
    composed = []
    for entry in entries:
        try:
            composed.append(check(entry.run, unknown=unknown))
        except WrongCommand as problem:
            for line in problem.problems if isinstance(problem, Refused) else [str(problem)]:
                problems.setdefault(line, []).append(entry)
    if problems:
        raise Refused(text for line, whose in problems.items() for text in _named(line, whose, entries))
    return composed


def _named(line: str, whose: Sequence[Entry], entries: Sequence[Entry]) -> Iterator[str]:
    """Yield a problem with the contenders that have it, and with their heats if they do not have it in all of them."""
    if len(whose) == len(entries):
        yield line
        return
    labels = Counter(entry.label for entry in entries)
    for label, count in Counter(entry.label for entry in whose).items():
        if count == labels[label] > 1:
            yield f"{label}: {line}"
        else:
            yield from (f"{label} ({entry.heat}): {line}" for entry in whose if entry.label == label)


def _cells(
    suite: Suite, entries: Sequence[Entry], composed: Sequence[Composed], script: tuple[str, ...]
) -> Iterator[Cell]:
    rounds = suite.rounds or max(1, min(MOST_ROUNDS, MOST_CELLS // max(1, len(entries))))
    for number in range(1, rounds + 1):
        taking_part = [(index, entry) for index, entry in enumerate(entries) if number in _rounds_of(entry, suite)]
        seed = f"{suite.seed}, round {number}"
        order = in_turns(taking_part, lambda place: (place[1].heat.model, place[1].heat.batch), seed)
        if number == 1:  # the first record of a contender already has an efficiency
            order.sort(key=lambda place: place[1].label != BASELINE)
        for index, entry in order:
            heat = entry.heat
            stem = slug(redact(f"{heat.model} {heat.workers}x{heat.batch} {entry.label}"))
            name = f"{stem}-{index + 1}-round{number}"
            run, checked = _in_round(entry.run, number), composed[index]
            if run is not entry.run:
                checked = replace(checked, run=checked.run.with_(seed=run.seed))
            yield Cell(name, heat, entry.label, number, run, script, entry.same_result, entry.alone, checked)


def _in_round(run: Run, number: int) -> Run:
    """Return the run of a round. Where accuracy is compared, every round has another seed, for all contenders alike."""
    return run.with_(seed=(run.seed + number - 1) % (LARGEST_SEED + 1)) if run.epochs and number > 1 else run


def _rounds_of(entry: Entry, suite: Suite) -> Collection[int]:
    """Return the rounds of an entry: all, or only the first ones if no verdict depends on it."""
    extra = entry.label == BASELINE or (entry.label == LIMIT.name and bool(entry.alone))
    if suite.rounds is None:
        usual = LIMIT_ROUNDS if entry.label == LIMIT.name and not extra else MOST_ROUNDS
        return range(1, (suite.reference_rounds or FEW_ROUNDS if extra else usual) + 1)
    few = suite.reference_rounds or suite.rounds
    if few >= suite.rounds or not extra:
        return range(1, suite.rounds + 1)
    return {1 + place * (suite.rounds - 1) // max(1, few - 1) for place in range(few)}  # spread evenly


def slug(text: str, longest: int = 60) -> str:
    """Return the text as letters, digits and dashes, for a file name."""
    return re.sub(r"[^\w.]+", "-", text).strip("-.")[:longest]
