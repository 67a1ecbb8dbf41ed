"""From a run to its axes, with notes or with every refusal: of flags (asked.py) and of members that do not go together
(matching.py, compression.py).

A refusal says what, why and what to try. All problems are reported at once; nothing falls back silently.
`compose(run)` is called before any worker starts and loads no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from paceline import (
    compression,
    compressors,
    exchanges,
    matching,
    memberships,
    models,
    rules,
    schedules,
    sources,
    topologies,
)
from paceline.asked import CHECKS, Machine, nodes
from paceline.bench.compute import MENU as COMPUTE
from paceline.comm import MENU as COMMS
from paceline.errors import PacelineError, Refused, WrongCommand
from paceline.grammar import parse
from paceline.lab.lab import read_lab
from paceline.run import Run
from paceline.strategies import find
from paceline.types import Axes

MENUS = {
    "rule": rules.MENU,
    "exchange": exchanges.MENU,
    "schedule": schedules.MENU,
    "compressor": compressors.MENU,
    "membership": memberships.MENU,
}
FLAGS = {"compressor": "compress"}
OWN = ("model", "optimizer")  # what a script brings itself: nobody knows it before it is wrapped


def axes_of(run: Run) -> Axes:
    """The members that a run names: its strategy's, each replaced by an axis that is given."""
    strategy = find(run.strategy or "allreduce")
    if strategy.across and not list(nodes(run, Machine())) and run.cluster.count > 1:
        strategy = replace(strategy, exchange=strategy.across)
    members = {}
    for axis, menu in MENUS.items():
        given = getattr(run, FLAGS.get(axis, axis))
        members[axis] = menu.make(given if given is not None else getattr(strategy, axis))
    if run.topology is not None and members["exchange"].takes_topology:
        members["exchange"] = replace(members["exchange"], topology=topologies.MENU.make(run.topology))
    return Axes(**members, topology=members["exchange"].topology)


def servers_of(run: Run) -> int:
    """Processes that a sound run needs beside its workers."""
    return 0 if run.reference else axes_of(run).exchange.servers


def compose(run: Run, machine: Machine | None = None, *, unknown: Collection[str] = ()) -> Axes | None:
    """The axes of a sound run, with its notes; None for a reference. Raises Refused with every problem.

    `unknown` are fields that stand in the run only because something must: no compressor is judged by them.
    """
    problems: list[str] = []
    for check_words in _axes_words, _other_words:
        try:
            check_words(run)
        except WrongCommand as problem:
            problems.append(str(problem))
    axes = None if run.reference or problems else axes_of(run)
    problems += [str(problem) for check in (*CHECKS, _topology_is_used) for problem in check(run, machine or Machine())]
    if axes is not None:
        checks = (*matching.AXES_CHECKS, *compression.AXES_CHECKS)
        problems += [str(problem) for check in checks for problem in check(axes)]
        problems += [str(problem) for problem in _fits(run, axes, unknown)]
        problems += [str(problem) for problem in compression.packs_on_cpus(axes, (machine or Machine()).gpus)]
    if problems:
        raise Refused(problems)
    if axes is None:
        return None
    return replace(axes, compressor=compression.for_precision(run, axes.compressor), notes=tuple(_notes(run, axes)))


def check_words(run: Run) -> None:
    """Refuse a word that no menu has, whatever stands beside it."""
    _axes_words(run)
    _other_words(run)


def _axes_words(run: Run) -> None:
    if not run.reference:
        axes_of(run)


def _other_words(run: Run) -> None:
    """Words whose members are built by the workers: only their spelling is checked here."""
    if run.comm != "auto":
        COMMS.check(run.comm)
    if run.lab is not None:
        read_lab(run.lab)
    sources.MENU.make(run.source)
    COMPUTE.make(run.compute)
    parse(run.optimizer)
    model = parse(run.model).word
    if ":" not in model:
        models.MENU.check(model)


def _topology_is_used(run: Run, machine: Machine) -> Iterator[PacelineError]:
    if run.topology is None or run.reference:
        return
    try:
        exchange = axes_of(run).exchange
    except WrongCommand:
        return
    if run.exchange is not None and parse(run.exchange).called and exchange.takes_topology:
        yield WrongCommand(
            f"--topology {run.topology} beside --exchange {run.exchange}",
            why="both name a topology",
            remedy=f"--exchange '{exchange.name}({run.topology})'",
        )
    if not exchange.takes_topology:
        levels = exchange.topology is not None
        yield WrongCommand(
            f"--topology {run.topology} with exchange {exchange}",
            why="its topology stands inside" if levels else f"{exchange} mixes with no neighbors",
            remedy=f"--exchange 'hierarchical(neighbor({run.topology}))'" if levels else "leave --topology out",
        )


def _fits(run: Run, axes: Axes, unknown: Collection[str]) -> Iterator[PacelineError]:
    """What depends on the number of ranks; asked only where that number makes sense."""
    if run.workers < 1 or list(nodes(run, Machine())):
        return
    try:
        axes.exchange.check(run.cluster)
    except WrongCommand as problem:
        yield problem
        return
    known = [check for check, field in compression.RUN_CHECKS.items() if field not in unknown]
    for check in (*matching.RUN_CHECKS, *known):
        yield from check(run, axes)


def _notes(run: Run, axes: Axes) -> Iterator[str]:
    note = None if axes.topology is None else axes.topology.note(matching.mixers(run, axes), run.cluster.count)
    if note:
        yield note
    if not axes.rule.same_result:
        yield f"rule {axes.rule} changes convergence: compare accuracy, not only speed"
    if axes.exchange.asynchronous:
        yield f"{axes.exchange.name} takes what has arrived: no two runs are the same"
    yield from compression.notes(axes)
    if axes.schedule.crosses_step and not axes.schedule.decouples:
        yield f"schedule {axes.schedule} follows the order of rank 0"
    if run.precision == "fp16" and not run.clip_norm:
        yield "fp16 scales the loss; a step whose gradient overflows is skipped on all ranks"
