"""What a run may not ask for, whatever its members: the part of compose.py that looks at flags one by one."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline import sources
from paceline.bench.compute import MENU as COMPUTE
from paceline.bench.profile import read as read_profile
from paceline.errors import BadMember, PacelineError, UnknownName, WrongCommand
from paceline.protocols import Source
from paceline.run import Run


@dataclass(frozen=True)
class Machine:
    """What the machine offers, as far as it decides whether a run can start."""

    gpus: int = 0


RunCheck = Callable[[Run, Machine], Iterator[PacelineError]]


def _counts(run: Run, machine: Machine) -> Iterator[PacelineError]:
    for name, (flag, unit) in _AT_LEAST_ONE.items():
        value = getattr(run, name)
        if value is not None and value < 1:
            yield WrongCommand(f"{flag} {value}", why=f"at least 1 {unit} is needed")
    if run.warmup < 0:
        yield WrongCommand(f"--warmup {run.warmup}", why="it cannot be negative")
    if run.clip_norm is not None and not run.clip_norm > 0:
        yield WrongCommand(f"--clip-norm {run.clip_norm:g}", why="a norm is above 0")
    if not run.deadline > 0:
        yield WrongCommand(f"--deadline {run.deadline:g}", why="it must be above 0 seconds")


_AT_LEAST_ONE = {
    "workers": ("-np", "worker"),
    "batch_size": ("--batch-size", "sample"),
    "global_batch": ("--global-batch", "sample"),
    "steps": ("--steps", "step"),
    "epochs": ("--epochs", "epoch"),
    "repeats": ("--repeats", "repeat"),
    "accumulate": ("--accumulate", "backward"),
    "classes": ("--classes", "class"),
    "image_size": ("--image-size", "pixel"),
    "sequence_length": ("--sequence-length", "token"),
    "threads": ("--threads", "thread"),
}


def _one_batch(run: Run, machine: Machine) -> Iterator[PacelineError]:
    if run.batch_size is not None and run.global_batch is not None:
        yield WrongCommand(
            f"--batch-size {run.batch_size} beside --global-batch {run.global_batch}",
            why="the first is per worker, the second for all workers together",
            remedy="give one of them",
        )
    parts = max(1, run.workers * run.accumulate)
    if run.batch_size is None and run.global_batch and run.global_batch % parts:
        yield WrongCommand(
            f"--global-batch {run.global_batch}",
            why=f"{run.workers} workers x {run.accumulate} backward each cannot share it evenly",
            remedy=f"--global-batch {max(1, run.global_batch // parts) * parts}",
        )


def _one_length(run: Run, machine: Machine) -> Iterator[PacelineError]:
    if run.steps is not None and run.epochs is not None:
        yield WrongCommand(
            f"--steps {run.steps} beside --epochs {run.epochs}",
            why="both say how long to train",
            remedy="give one of them",
        )


def _comm_has_device(run: Run, machine: Machine) -> Iterator[PacelineError]:
    if run.comm == "nccl" and not machine.gpus:
        yield WrongCommand("--comm nccl", why="this machine has no GPU", remedy="--comm auto")
    if run.comm in ("shm", "gloo") and machine.gpus:
        yield WrongCommand(
            f"--comm {run.comm}",
            why="it moves memory of the host, and this machine trains on GPUs",
            remedy="--comm auto, or CUDA_VISIBLE_DEVICES= to train on CPUs",
        )
    if run.comm == "thread":
        yield WrongCommand("--comm thread", why="it joins threads of one process, for tests", remedy="--comm auto")


def _reference_is_alone(run: Run, machine: Machine) -> Iterator[PacelineError]:
    if run.reference is None:
        return
    given = [flag for flag in ("rule", "exchange", "topology", "schedule", "compress") if getattr(run, flag)]
    for flag in given:
        yield WrongCommand(
            f"--{flag} {getattr(run, flag)} beside --strategy {run.reference}",
            why=f"{run.reference} is a reference, not made of axes",
            remedy="leave it out, or race --strategy allreduce with it",
        )


def nodes(run: Run, machine: Machine) -> Iterator[PacelineError]:
    if run.nodes is None:
        return
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", run.nodes):
        yield WrongCommand(f"--nodes {run.nodes}", why="it is nodes x ranks of each", remedy="--nodes 2x2")
    elif run.cluster.size != run.workers:
        yield WrongCommand(
            f"--nodes {run.nodes} with -np {run.workers}",
            why=f"that is {run.cluster.size} ranks",
            remedy=f"-np {run.cluster.size}",
        )


def _profile_is_there(run: Run, machine: Machine) -> Iterator[PacelineError]:
    if run.profile is not None:
        try:
            read_profile(Path(run.profile))
        except WrongCommand as problem:
            yield WrongCommand(f"--profile {run.profile}", why=str(problem))


def _lab(run: Run, machine: Machine) -> Iterator[PacelineError]:
    if run.cpus is not None and not 0.01 <= run.cpus < float("inf"):
        yield WrongCommand(f"--cpus {run.cpus:g}", why="a worker gets at least 0.01 of a core", remedy="--cpus 0.5")
    if run.lab is None:
        return
    if run.nodes is not None:
        yield WrongCommand(
            f"--nodes {run.nodes} beside --lab {run.lab}", why="both say where ranks are", remedy="give one of them"
        )
    if run.comm == "shm" and run.workers > 1:
        yield WrongCommand("--comm shm with --lab", why="hosts of a lab share no memory", remedy="--comm gloo")


def _compute_fits(run: Run, machine: Machine) -> Iterator[PacelineError]:
    with suppress(UnknownName, BadMember):  # told with the other words
        compute, real = COMPUTE.make(run.compute), run.precision == "fp32" and not run.compile
        yield from compute.problems(model=run.model, batch_size=run.per_worker, plain=real)


def _source_fits(run: Run, machine: Machine) -> Iterator[PacelineError]:
    """Files are looked at before any worker starts; what the model must take is what they hold."""
    with suppress(UnknownName, BadMember):  # told with the other words
        source = sources.MENU.make(run.source)
        yield from _misfits(run, source)


def _misfits(run: Run, source: Source) -> Iterator[PacelineError]:
    try:
        fit = source.fit()
    except PacelineError as problem:
        yield problem
        return
    for name, fits in (("image_size", operator.eq), ("classes", operator.ge)):
        given, held = getattr(run, name), fit.get(name)
        if given is not None and held is not None and not fits(given, held):
            flag = "--" + name.replace("_", "-")
            yield WrongCommand(
                f"{flag} {given} with source {source}", why=f"its samples have {held}", remedy="leave it out"
            )


CHECKS: tuple[RunCheck, ...] = (
    nodes,
    _lab,
    _source_fits,
    _compute_fits,
    _counts,
    _one_batch,
    _one_length,
    _comm_has_device,
    _reference_is_alone,
    _profile_is_there,
)
