"""Compose a run: find its members, and collect notes or every reason to refuse it.

flags.py checks flags; matching.py and compression.py check which members go together. A refusal says what, why and what
to try. All problems are reported at once, and nothing falls back silently. `compose(run)` is called before any worker
starts and loads no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from paceline.cluster.lab.lab import read_lab
from paceline.cluster.launchers import MENU as LAUNCHERS
from paceline.cluster.machine import Machine, machine
from paceline.comm import MENU as COMMS
from paceline.comm.kinds import kind_of
from paceline.errors import BadMember, PacelineError, Refused, WrongCommand
from paceline.menu.grammar import parse
from paceline.menu.menu import make
from paceline.protocols import Costed
from paceline.run.axes import Axes, Composed
from paceline.run.compose import candidates, compression, matching
from paceline.run.compose.flags import CHECKS, nodes, optimizer_is_known, source_fits
from paceline.run.fields import RANKS
from paceline.run.run import Run
from paceline.run.strategies import find
from paceline.strategy import compressors, exchanges, memberships, rules, schedules, topologies
from paceline.types import Cluster
from paceline.workload import models, sources
from paceline.workload.computes import MENU as COMPUTE

MENUS = {
    "rule": rules.MENU,
    "exchange": exchanges.MENU,
    "schedule": schedules.MENU,
    "compressor": compressors.MENU,
    "membership": memberships.MENU,
}
OWN = ("model", "optimizer")  # defined by a user's script; not known before it calls wrap


def axes_of(run: Run, cluster: Cluster | None = None) -> Axes:
    """Return the members that a run names: those of its strategy, each replaced if the run sets that axis.

    `cluster` is the real placement of ranks. Without it, the placement of the run is used.
    """
    strategy = find("allreduce" if run.strategy is None else run.strategy)
    if strategy.across and not list(nodes(run, Machine())) and (cluster or run.cluster).count > 1:
        strategy = replace(strategy, exchange=strategy.across)
    members = {}
    for axis, menu in MENUS.items():
        text = getattr(run, axis)
        members[axis] = menu.make(text if text is not None else getattr(strategy, axis))
    if run.topology is not None and members["exchange"].takes_topology:
        members["exchange"] = members["exchange"].with_topology(topologies.MENU.make(run.topology))
    return Axes(**members, topology=members["exchange"].topology)


def servers_of(run: Run) -> int:
    """Return the number of processes that a checked run needs beside its workers."""
    return 0 if run.reference else axes_of(run).exchange.servers


def compose(
    run: Run, machine: Machine | None = None, cluster: Cluster | None = None, *, unknown: Collection[str] = ()
) -> Composed:
    """Return the members of a sound run and the notes about them. Raises Refused with every problem.

    `cluster` is the real placement of ranks, once they have joined. Without it, the placement of the run is used.
    Fields in `unknown` hold a default because their value is not known yet; compressors are not checked against them.
    """
    machine = machine or Machine()
    axes, problems = _members(run, cluster)
    known = not problems
    flags = CHECKS if "model" in unknown else (*CHECKS, optimizer_is_known)  # a user's loop has its own optimizer
    flags = tuple(check for check in flags if "source" not in unknown or check is not source_fits)
    problems += [str(problem) for check in flags for problem in check(run, machine)]
    if axes is not None:
        problems += [str(problem) for problem in _topology_is_used(run, axes.exchange)]
    if axes is not None and known:
        checks = (*matching.AXES_CHECKS, *compression.AXES_CHECKS)
        problems += [str(problem) for check in checks for problem in check(axes)]
        if run.workers <= RANKS:  # otherwise refused above, before anything is listed by rank
            problems += [str(problem) for problem in _fits(run, axes, cluster, unknown)]
        problems += [str(problem) for problem in compression.packs_on_cpus(axes, machine.gpus)]
    if problems:
        raise Refused(problems)
    if axes is None:
        return Composed(run, None)
    notes = tuple(_notes(run, axes, machine, cluster or run.cluster))
    return Composed(run, replace(axes, compressor=compression.for_precision(run, axes.compressor)), notes)


def _members(run: Run, cluster: Cluster | None) -> tuple[Axes | None, list[str]]:
    """Return the members of a run, and an error for every word of it that no menu has."""
    axes, problems = None, []
    try:
        axes = None if run.reference else axes_of(run, cluster)
    except WrongCommand as problem:
        problems.append(str(problem))
    try:
        _words_of_workers(run)
    except WrongCommand as problem:
        problems.append(str(problem))
    return axes, problems


def check_comm(text: str) -> None:
    """Refuse a comm that is not on the menu. Only tcp takes settings."""
    spec = parse(text)
    COMMS.check(spec.word)
    settings = kind_of(text).settings
    if settings is not None:
        make(settings, spec)
    elif spec.called:
        raise BadMember(text, why=f"{spec.word} takes no settings")


def check_words(run: Run) -> None:
    """Refuse every word that no menu has. Other settings are not checked."""
    if not run.reference:
        axes_of(run)
    _words_of_workers(run)


def _words_of_workers(run: Run) -> None:
    """Refuse words for members that only the workers build, if no menu has them."""
    if run.comm != "auto":
        check_comm(run.comm)
    if run.lab is not None:
        read_lab(run.lab)
    if run.launcher is not None:
        LAUNCHERS.make(run.launcher)
    sources.MENU.make(run.source)
    COMPUTE.make(run.compute)
    parse(run.optimizer)
    model = parse(run.model).word
    if ":" not in model:
        models.MENU.check(model)


def _topology_is_used(run: Run, exchange: Costed) -> Iterator[PacelineError]:
    """Refuse a topology if the exchange takes none, or already names one."""
    if run.topology is None:
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


def _fits(run: Run, axes: Axes, cluster: Cluster | None, unknown: Collection[str]) -> Iterator[PacelineError]:
    """Yield the problems that depend on the number of ranks; called only if that number is valid."""
    if run.workers < 1 or list(nodes(run, Machine())):
        return
    cluster = cluster or run.cluster
    try:
        axes.exchange.check(cluster)
    except WrongCommand as problem:
        yield problem
        return
    known = [check for check, field in compression.RUN_CHECKS.items() if field not in unknown]
    for check in matching.RUN_CHECKS:
        yield from check(run, axes)
    yield from matching.sound_weights(axes, cluster)
    for check in known:
        yield from check(run, axes)


def _notes(run: Run, axes: Axes, machine: Machine, cluster: Cluster) -> Iterator[str]:
    note = None if axes.topology is None else axes.topology.note(matching.mixers(axes, cluster), cluster.count)
    if note:
        yield note
    if not axes.rule.same_result:
        yield f"rule {axes.rule} changes convergence: compare accuracy, not only speed"
    if axes.rule.streams:
        every = axes.rule.period
        yield f"rule {axes.rule}: explain and forecast count one exchange of all every {every} steps, without delay"
    if axes.exchange.asynchronous:
        yield f"{axes.exchange.name} takes what has arrived: no two runs are the same"
    yield from compression.notes(axes)
    yield from compression.rounded_sums(run, axes, machine.gpus)
    if axes.schedule.crosses_step and not axes.schedule.decouples:
        yield f"schedule {axes.schedule} follows the order of rank 0"
    yield from candidates.notes(axes)
    if run.precision == "fp16" and not run.clip_norm:
        yield "fp16 scales the loss; a step whose gradient overflows is skipped on all ranks"


def check(run: Run, *, unknown: Collection[str] = ()) -> Composed:
    """Refuse a run that cannot be carried out on this machine, before anything starts."""
    return compose(run, machine(), unknown=unknown)
