"""Checks of single flags for compose.py. They do not depend on the members."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from paceline.cluster.hosts import written
from paceline.cluster.machine import Machine
from paceline.comm.kinds import kind_of
from paceline.errors import BadMember, PacelineError, UnknownName, WrongCommand, short
from paceline.menu.grammar import Spec, parse
from paceline.run.fields import THREADS
from paceline.run.run import AXES, SHAPES, Run, about, flag_of, hosts_of
from paceline.workload import rates, sources
from paceline.workload.computes import MENU as COMPUTE
from paceline.workload.layouts import read as read_layouts
from paceline.workload.optimizer_settings import NEVER_NEGATIVE, optimizer_settings
from paceline.workload.profile import read as read_profile
from paceline.workload.sources._source import Source

RunCheck = Callable[[Run, Machine], Iterator[PacelineError]]


def _counts(run: Run, machine: Machine) -> Iterator[PacelineError]:
    for name in Run.model_fields:
        value = getattr(run, name)
        why = about(name).problem(value) if isinstance(value, int | float) else ""
        if why:
            shown = f"{value:g}" if isinstance(value, float) else short(str(value))
            yield WrongCommand(f"{flag_of(name)} {shown}", why=why, remedy=f"{flag_of(name)} {_example(name)}")


def _example(name: str) -> str:
    """Return a number that the field takes: its default, or else the nearest to its bound."""
    known, default = about(name), Run.model_fields[name].default
    if isinstance(default, int | float) and not known.problem(default):
        return f"{default:g}"
    return f"{known.least or known.most or 1:g}"


def check_variables(run: Run, environ: Mapping[str, str]) -> None:
    """Refuse environment variables that a worker would fail on later."""
    wanted = {"PACELINE_FLOPS": (0, 10**18)}
    if run.threads is None:
        wanted["OMP_NUM_THREADS"] = (1, THREADS)
    for name, (least, most) in wanted.items():
        text = environ.get(name, "")
        if name in environ and not (text.strip().isdecimal() and len(text) < 20 and least <= int(text) <= most):
            raise WrongCommand(
                f"{name}={short(text)}", why=f"it is a whole number, {least} to {most:,}", remedy=f"unset {name}"
            )


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


def _needs_epochs(run: Run, machine: Machine) -> Iterator[PacelineError]:
    for name in ("checkpoint", "target"):
        value = getattr(run, name)
        if value is not None and run.epochs is None:
            yield WrongCommand(
                f"{flag_of(name)} {value}", why="it belongs to training for epochs", remedy="add --epochs 10"
            )
    for name in ("every", "resume"):
        value = getattr(run, name)
        if value and run.checkpoint is None:
            shown = "" if value is True else f" {value}"
            yield WrongCommand(
                f"{flag_of(name)}{shown}", why="there is no folder of checkpoints", remedy="add --checkpoint DIR"
            )


def _rate_is_known(run: Run, machine: Machine) -> Iterator[PacelineError]:
    if run.lr_schedule is not None:
        try:
            rates.MENU.make(run.lr_schedule)
        except WrongCommand as problem:
            yield problem


def _comm_has_device(run: Run, machine: Machine) -> Iterator[PacelineError]:
    kind = kind_of(run.comm)
    if kind.memory == "gpu" and not machine.gpus:
        yield WrongCommand(f"--comm {run.comm}", why="this machine has no GPU", remedy="--comm auto")
    if kind.memory == "host" and kind.for_jobs and machine.gpus:
        yield WrongCommand(
            f"--comm {run.comm}",
            why="it moves memory of the host, and this machine trains on GPUs",
            remedy="--comm auto, or CUDA_VISIBLE_DEVICES= to train on CPUs",
        )
    if not kind.for_jobs:
        yield WrongCommand(f"--comm {run.comm}", why="it joins threads of one process, for tests", remedy="--comm auto")


def _buffer_has_sockets(run: Run, machine: Machine) -> Iterator[PacelineError]:
    if run.socket_buffer and not kind_of(run.comm).sockets:
        yield WrongCommand(
            f"--socket-buffer {run.socket_buffer} with --comm {run.comm}",
            why="only tcp has sockets of paceline's own",
            remedy="--comm tcp",
        )


def _reference_is_alone(run: Run, machine: Machine) -> Iterator[PacelineError]:
    if run.reference is None:
        return
    axes = [axis for axis in AXES if getattr(run, axis) and axis != "membership"]  # a reference also has fixed members
    for axis in axes:
        yield WrongCommand(
            f"{flag_of(axis)} {getattr(run, axis)} beside --strategy {run.reference}",
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
    if run.lab is None:
        return
    if run.nodes is not None:
        yield WrongCommand(
            f"--nodes {run.nodes} beside --lab {run.lab}", why="both say where ranks are", remedy="give one of them"
        )
    if not kind_of(run.comm).far and run.workers > 1:
        yield WrongCommand(f"--comm {run.comm} with --lab", why="hosts of a lab share no memory", remedy="--comm auto")


def _hosts(run: Run, machine: Machine) -> Iterator[PacelineError]:
    """Yield the flags that do not go together with named hosts."""
    known = hosts_of(run)
    if not known:
        return
    shown = f"{flag_of('hosts')} {written(known)}"
    for name, why in (
        ("lab", "both say where ranks are"),
        ("nodes", "both say where ranks are"),
        ("cpus", "a share of a core is set up on this machine only"),
    ):
        if getattr(run, name) is not None:
            yield WrongCommand(f"{flag_of(name)} {getattr(run, name)} beside {shown}", why=why, remedy="leave one out")
    if run.launcher is not None and parse(run.launcher).word == "local":
        yield WrongCommand(f"--launcher local beside {shown}", why="it starts on this machine only", remedy="ssh")
    if not kind_of(run.comm).far and run.cluster.count > 1:
        yield WrongCommand(f"--comm {run.comm} beside {shown}", why="hosts share no memory", remedy="--comm auto")


def _compute_fits(run: Run, machine: Machine) -> Iterator[PacelineError]:
    with suppress(UnknownName, BadMember):  # reported with the other words
        compute, real = COMPUTE.make(run.compute), run.precision == "fp32" and not run.compile
        yield from compute.problems(model=run.model, batch_size=run.per_worker, plain=real)


def source_fits(run: Run, machine: Machine) -> Iterator[PacelineError]:
    """Check the files of the source, and whether the model takes their samples, before any worker starts."""
    with suppress(UnknownName, BadMember):  # reported with the other words
        source = sources.MENU.make(run.source)
        yield from _misfits(run, source)


def _streams_have_no_order(run: Run, machine: Machine) -> Iterator[PacelineError]:
    with suppress(PacelineError):  # reported with the other words
        source = sources.MENU.make(run.source)
        for name in ("epochs", "checkpoint", "lr_schedule") if source.kind == "stream" else ():
            value = getattr(run, name)
            if value is not None:
                yield WrongCommand(
                    f"{flag_of(name)} {value} with source {source}",
                    why="a stream has no epochs and no order that could be resumed",
                    remedy="--steps, or a source of files such as tfrecord(DIR)",
                )


def _misfits(run: Run, source: Source) -> Iterator[PacelineError]:
    try:
        fit = source.fit()
    except PacelineError as problem:
        yield problem
        return
    for name, fits in (("image_size", operator.eq), ("classes", operator.ge)):
        value, held = getattr(run, name), fit.get(name)
        if value is not None and held is not None and not fits(value, held):
            yield WrongCommand(
                f"{flag_of(name)} {value} with source {source}", why=f"its samples have {held}", remedy="leave it out"
            )


def _model_takes_shapes(run: Run, machine: Machine) -> Iterator[PacelineError]:
    """Refuse a sample shape that an included model does not take; other models are checked when they are built."""
    shapes = [name for name in SHAPES if getattr(run, name) is not None]
    unit = _unit(run.model) if shapes else None
    for name in shapes:
        if unit is not None and unit != about(name).samples:
            yield WrongCommand(
                f"{flag_of(name)} {getattr(run, name)} with model {short(run.model)}",
                why=f"its samples are {_SAMPLES.get(unit, unit)}",
                remedy=f"leave it out, or {flag_of('sequence_length')} 128" if unit == "sequence" else "leave it out",
            )


_SAMPLES = {"img": "images", "sequence": "sequences of tokens"}


def _unit(model: str) -> str | None:
    with suppress(BadMember):
        return next((entry["unit"] for text, entry in read_layouts().items() if text == parse(model).word), None)
    return None


def _optimizer_has_numbers(run: Run, machine: Machine) -> Iterator[PacelineError]:
    """Refuse a word where torch.optim takes a number; only settings that name a function (..._fn) take words."""
    with suppress(BadMember):  # refused with the other words
        spec = parse(run.optimizer)
        for name, value in (*(("", value) for value in spec.args), *spec.kwargs):
            if not name.endswith("_fn") and not value.called and not _is_number(value.word):
                yield WrongCommand(
                    f"--optimizer {short(run.optimizer)}",
                    why=f"{name or 'a setting'} takes a number, true, false or none; got {short(value.word)}",
                    remedy=f"--optimizer '{spec.word}({name or 'lr'}=0.01)'",
                )


def optimizer_is_known(run: Run, machine: Machine) -> Iterator[PacelineError]:
    """Refuse an optimizer that torch does not have, a setting that it does not take, and negative numbers."""
    if run.optimizer == Run.model_fields["optimizer"].default:
        return
    yield from wrong_optimizer(run.optimizer, "--optimizer {}", "--optimizer '{}'")


def wrong_optimizer(text: str, what: str, right: str) -> Iterator[PacelineError]:
    """Yield the problems of an optimizer.

    `what` and `right` are texts for messages: where it was written, and a right example.
    """
    with suppress(BadMember):  # refused with the other words
        spec, known = parse(text), optimizer_settings()
        settings = known.get(spec.word.lower())
        if known and settings is None:
            yield UnknownName("optimizer", short(spec.word), known)
        elif settings is not None:
            remedy = right.format(f"{spec.word}({settings[0]}=0.01)")
            yield from _wrong_settings(what.format(short(text)), spec, settings, remedy)


def _wrong_settings(what: str, spec: Spec, settings: Sequence[str], right: str) -> Iterator[PacelineError]:
    values = [*zip(settings, spec.args, strict=False), *spec.kwargs]
    unknown = [name for name, _ in values if name not in settings]
    if unknown or len(spec.args) > len(settings):
        wrong = f"got {short(unknown[0])}" if unknown else f"got {len(spec.args)} values"
        yield WrongCommand(what, why=f"{spec.word} takes {', '.join(settings)}; {wrong}", remedy=right)
    for name, value in values:
        if name in NEVER_NEGATIVE and value.word.startswith("-") and _is_number(value.word):
            yield WrongCommand(what, why=f"{name} is at least 0; got {value.word}", remedy=right)


def _is_number(word: str) -> bool:
    if word.lower() in ("true", "false", "none"):
        return True
    try:
        float(word)
    except ValueError:
        return False
    return True


CHECKS: tuple[RunCheck, ...] = (
    nodes,
    _lab,
    _hosts,
    source_fits,
    _streams_have_no_order,
    _compute_fits,
    _model_takes_shapes,
    _optimizer_has_numbers,
    _counts,
    _one_batch,
    _one_length,
    _needs_epochs,
    _rate_is_known,
    _comm_has_device,
    _buffer_has_sockets,
    _reference_is_alone,
    _profile_is_there,
)
