"""Checks of compressors for compose.py: refusals and notes, from traits alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from paceline.comm.kinds import kind_of
from paceline.errors import PacelineError, WrongCommand
from paceline.menu.grammar import parse
from paceline.protocols import Compressor
from paceline.run.axes import Axes
from paceline.run.run import Run
from paceline.workload.layouts import layout_of


def contractive_feedback(axes: Axes) -> Iterator[PacelineError]:
    """Refuse feedback around a compressor that is not contractive."""
    inner = axes.compressor.wrapped
    if inner is None or (inner.loss == "lossy" and (inner.contractive or inner.shrinks)):
        return
    if inner.remembers:
        why, remedy = f"{inner} keeps what it does not send by itself", f"--compress '{inner}'"
    elif inner.loss != "lossy":
        why, remedy = f"{inner} drops nothing that feedback could see", f"--compress '{inner}'"
    else:
        why = f"{inner} is not contractive: what it does not send would grow without bound"
        remedy = "--compress 'feedback(efsign)'"
    yield WrongCommand(f"compressor {axes.compressor}", why=why, remedy=remedy)


def carried_payloads(axes: Axes) -> Iterator[PacelineError]:
    """Refuse payloads that cannot be summed, unless the exchange gathers."""
    if not axes.compressor.summable and not axes.exchange.gathers:
        yield WrongCommand(
            f"compressor {axes.compressor} over exchange {axes.exchange}",
            why="its payloads cannot be summed on the way, and this exchange only sums",
            remedy="--exchange allreduce, or --compress 'feedback(powersgd(rank=2))'",
        )


def whole_tensors(axes: Axes) -> Iterator[PacelineError]:
    """Refuse a compressor that needs whole tensors with a schedule that cuts through them."""
    if axes.compressor.aligned and axes.schedule.cuts_tensors:
        yield WrongCommand(
            f"compressor {axes.compressor} with schedule {axes.schedule}",
            why="it needs whole tensors, and this schedule cuts through them",
            remedy="--schedule fusion",
        )


def one_momentum(run: Run, axes: Axes) -> Iterator[PacelineError]:
    """Refuse a compressor that takes over momentum if the optimizer has its own."""
    if axes.compressor.takes_momentum and has_momentum(run.optimizer):
        yield WrongCommand(
            f"compressor {axes.compressor} with optimizer {run.optimizer}",
            why="both would apply momentum; the compressor takes it over",
            remedy="--optimizer 'sgd(lr=0.01)', or without momentum in your own loop",
        )


def momentum_of_one_gradient(axes: Axes) -> Iterator[PacelineError]:
    """Refuse a compressor that takes over momentum on a lane with an outer optimizer, which has its own momentum."""
    if axes.compressor.takes_momentum and axes.rule.leaves == "update" and all(x.lossy_ok for x in axes.rule.lanes):
        yield WrongCommand(
            f"compressor {axes.compressor} with rule {axes.rule}",
            why="it takes over the momentum of an optimizer that applies gradients, and here an outer one does",
            remedy="--compress 'feedback(topk(ratio=0.01))'",
        )


def has_momentum(optimizer: str) -> bool:
    """Return whether an optimizer, as written, keeps a mean of past gradients."""
    spec = parse(optimizer)
    settings = dict(spec.kwargs)
    if spec.word.lower() == "sgd" and len(spec.args) > 1:
        settings.setdefault("momentum", spec.args[1])
    written = str(settings.get("momentum", "0"))
    return spec.word.lower() in _WITH_MEANS or written.strip("0.") != ""


_WITH_MEANS = ("adam", "adamw", "adamax", "nadam", "radam", "sparseadam", "muon")


def finite_payloads(run: Run, axes: Axes) -> Iterator[PacelineError]:
    """Refuse loss scaling with a lossy compressor: the infinity of an overflow would be lost in its payload."""
    if run.precision == "fp16" and axes.compressor.loss == "lossy":
        yield WrongCommand(
            f"--precision fp16 with compressor {axes.compressor}",
            why="a scaled gradient may overflow, and infinity cannot be packed",
            remedy="--precision bf16",
        )


def matrices_have_that_rank(run: Run, axes: Axes) -> Iterator[PacelineError]:
    """Refuse a rank of PowerSGD above that of every matrix of a listed model. Other models are checked by `wrap`."""
    slots = layout_of(run.model) if run.classes is None else None
    try:
        axes.compressor.check(slots or ())
    except WrongCommand as problem:
        yield problem


def packs_on_cpus(axes: Axes, gpus: int) -> Iterator[PacelineError]:
    """Refuse lossy compressors on GPUs: they pack on the CPU, and gradients would have to be copied there first."""
    if gpus and axes.compressor.loss == "lossy":
        yield WrongCommand(
            f"compressor {axes.compressor} on GPUs",
            why="it is written for tensors in the memory of the CPU",
            remedy="--compress 'cast(bf16)', or CUDA_VISIBLE_DEVICES= to train on CPUs",
        )


AXES_CHECKS = (momentum_of_one_gradient, contractive_feedback, carried_payloads, whole_tensors)
# Each check with the field of a run that it depends on.
RUN_CHECKS: dict[Callable[[Run, Axes], Iterator[PacelineError]], str] = {
    one_momentum: "optimizer",
    finite_payloads: "precision",
    matrices_have_that_rank: "model",
}


def for_precision(run: Run, compressor: Compressor) -> Compressor:
    """Return the compressor; with fp16, whose loss is scaled, a variant that lets infinity through."""
    return compressor.scaled() if run.precision == "fp16" else compressor


def rounded_sums(run: Run, axes: Axes, gpus: int) -> Iterator[str]:
    """Register that gloo and nccl add in the dtype that travels, while all other sums here are in float32."""
    comm = run.comm if kind_of(run.comm).rounds_sums else "nccl" if gpus else "gloo" if run.lab else ""
    if comm and axes.exchange.one_sum and axes.compressor.loss == "rounding" and run.workers > 2:
        yield f"{comm} adds what {axes.compressor} rounded in half precision: a sum is rounded again at every hop"


def notes(axes: Axes) -> Iterator[str]:
    compressor = axes.compressor
    if not compressor.summable:
        way = "is merged pair by pair" if compressor.merges else "travels as all-gather"
        yield f"{compressor} {way}: it cannot be summed"
    if compressor.loss == "lossy":
        yield f"{compressor} changes convergence: compare accuracy, not only speed"
    if compressor.biased and compressor.loss == "lossy":
        yield f"{compressor} is biased and has no feedback: it may converge to another point"
    if compressor.varies:
        yield f"{compressor} {compressor.varies}"
    if compressor.loss == "rounding":
        yield f"{compressor} rounds what travels before it is combined"
