"""Checks of rules, exchanges, schedules and topologies for compose.py, from traits alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from paceline.comm.kinds import kind_of
from paceline.errors import PacelineError, WrongCommand
from paceline.menu.grammar import parse
from paceline.protocols import Compressor
from paceline.run.axes import Axes
from paceline.run.compose.flags import wrong_optimizer
from paceline.run.run import Run
from paceline.strategy.rules.server import ELEMENTWISE
from paceline.types import Chunk, Cluster, Layout, Slot


def consensus_lanes(axes: Axes) -> Iterator[PacelineError]:
    """Refuse a lane that needs consensus on an exchange without consensus: training would diverge."""
    for lane in axes.rule.lanes:
        if lane.needs_consensus and not axes.exchange.consensus:
            yield WrongCommand(
                f"rule {axes.rule} over exchange {axes.exchange}",
                why=f"the {lane.name} of every rank must become the same, and this exchange leaves them different",
                remedy="--exchange allreduce, or --rule atc",
            )


def update_on_servers(run: Run, axes: Axes) -> Iterator[PacelineError]:
    """Refuse an update on servers without dedicated servers, or with an optimizer that needs whole tensors."""
    if axes.rule.needs != "servers":
        return
    if not axes.exchange.dedicated:
        yield WrongCommand(
            f"rule {axes.rule} over exchange {axes.exchange}",
            why="parameters live on processes that do nothing but serve",
            remedy="--exchange 'ps(servers=1, colocated=false)'",
        )
    if parse(run.optimizer).word.lower() not in {name.lower() for name in ELEMENTWISE}:
        yield WrongCommand(
            f"rule {axes.rule} with optimizer {run.optimizer}",
            why="servers hold pieces of tensors, so the optimizer must work element by element",
            remedy="--optimizer 'sgd(lr=0.1)' or adamw, or --rule grad",
        )
    if axes.compressor.loss != "none":
        yield WrongCommand(
            f"compressor {axes.compressor} with rule {axes.rule}",
            why="servers take gradients as they are and give parameters back",
            remedy="--compress none, or --rule grad",
        )
    if axes.schedule.measures:
        yield WrongCommand(
            f"schedule {axes.schedule} with rule {axes.rule}",
            why="it cuts anew after some steps, and parameters do not move between servers",
            remedy="--schedule fusion",
        )
    if run.clip_norm is not None or run.precision == "fp16":
        yield WrongCommand(
            f"{'--clip-norm' if run.clip_norm is not None else '--precision fp16'} with rule {axes.rule}",
            why="no process sees the whole mean gradient before it is applied",
            remedy="leave it out, or --rule grad",
        )


def lossless_parameters(axes: Axes) -> Iterator[PacelineError]:
    """Refuse a lossy compressor on a lane that carries parameters."""
    for lane in axes.rule.lanes:
        if axes.compressor.loss == "lossy" and not lane.lossy_ok:
            yield WrongCommand(
                f"compressor {axes.compressor} with rule {axes.rule}",
                why=f"what it drops from the {lane.name} is lost for good",
                remedy="--compress none, or --compress 'cast(bf16)'",
            )


def stale_lanes(axes: Axes) -> Iterator[PacelineError]:
    """Refuse values that must belong to one step on all ranks, on an exchange that does not wait."""
    if not axes.exchange.asynchronous:
        return
    for lane in axes.rule.lanes:
        if not lane.stale_ok and not lane.needs_consensus:
            yield WrongCommand(
                f"rule {axes.rule} over exchange {axes.exchange}",
                why=f"the {lane.name} of all ranks must be of the same step, and this exchange takes what has arrived",
                remedy="--exchange neighbor, or --rule atc",
            )
        if lane.tail == "mass" and not axes.schedule.one_chunk:
            yield WrongCommand(
                f"rule {axes.rule} over exchange {axes.exchange} with schedule {axes.schedule}",
                why="chunks arrive by themselves, and only one of them carries the mass that all are divided by",
                remedy="--schedule bsp",
            )
    if axes.compressor.loss != "none":
        yield WrongCommand(
            f"compressor {axes.compressor} with exchange {axes.exchange}",
            why="it mixes values where they lie, not payloads",
            remedy="--compress none",
        )


def elastic_steps_end(axes: Axes) -> Iterator[PacelineError]:
    """Refuse elastic membership with schedules that continue an exchange during the next step."""
    if axes.membership.elastic and axes.schedule.crosses_step:
        yield WrongCommand(
            f"schedule {axes.schedule} with membership {axes.membership}",
            why="a step that another step already builds on cannot be taken back when a worker dies",
            remedy="--schedule fusion",
        )


def elastic_means_one_sum(run: Run, axes: Axes) -> Iterator[PacelineError]:
    """Refuse elastic membership unless a step is one sum of gradients that depend on no earlier step."""
    if not axes.membership.elastic:
        return
    refused = {
        f"rule {axes.rule}": (
            not (axes.rule.averages_gradients and axes.rule.same_result),
            "members that come and go must hold the same weights after every step",
            "--rule grad",
        ),
        f"exchange {axes.exchange}": (
            not axes.exchange.one_sum,
            "the step of a group that changes is one sum over its members",
            "--exchange allreduce",
        ),
        f"compressor {axes.compressor}": (
            axes.compressor.loss != "none",
            "what a member still owes is lost when it dies",
            "--compress none",
        ),
        f"--comm {run.comm}": (
            parse(run.comm).word not in ("auto", "shm", "tcp"),
            "it cannot be abandoned while a peer is frozen",
            "--comm shm on one host, or --comm tcp",
        ),
        "--precision fp16": (run.precision == "fp16", "its loss scale is not handed to newcomers", "--precision fp32"),
        f"--accumulate {run.accumulate}": (
            run.accumulate > 1,
            "a global batch is cut into shards, which are accumulated already",
            "elastic(shards=N)",
        ),
    }
    for what, (wrong, why, remedy) in refused.items():
        if wrong:
            yield WrongCommand(f"{what} with membership {axes.membership}", why=why, remedy=remedy)


def only_elastic_jobs_go_on(run: Run, axes: Axes) -> Iterator[PacelineError]:
    """Refuse --restart, --job and --batches-per-task in a job with fixed members, which has no coordinator."""
    values = {"--restart": run.restart, "--job": run.job, "--batches-per-task": run.batches_per_task}
    for flag, value in values.items():
        if value is not None and not axes.membership.elastic:
            yield WrongCommand(
                f"{flag} {value} with membership {axes.membership}",
                why="the ranks that start are the ranks that finish",
                remedy="--membership elastic",
            )


def tensor_by_tensor(run: Run, axes: Axes) -> Iterator[PacelineError]:
    """Refuse settings that need all gradients at once if the schedule updates tensors one by one."""
    if not axes.schedule.crosses_step:
        return
    conditions = {
        f"--clip-norm {run.clip_norm or 0:g}": (run.clip_norm is not None, "a global norm needs all gradients at once"),
        "--precision fp16": (run.precision == "fp16", "a step that overflows could not be skipped as a whole"),
        f"--optimizer {run.optimizer}": (_word(run.optimizer) == "lbfgs", "it moves all parameters together"),
        "--compile": (run.compile, "layers wait inside forward, where a compiled graph cannot stop"),
        f"rule {axes.rule}": (not axes.rule.averages_gradients, "it has no mean gradient to wait for"),
    }
    for what, (holds, why) in conditions.items():
        if holds:
            yield WrongCommand(
                f"{what} with schedule {axes.schedule}",
                why=f"tensors are updated one by one while the next step runs, and {why}",
                remedy="--schedule mgwfbp",
            )


def two_phases(axes: Axes) -> Iterator[PacelineError]:
    """Refuse a decoupled schedule without an exchange in two phases, or with compressed values."""
    if not axes.schedule.decouples:
        return
    if axes.exchange.decoupled() is None:
        yield WrongCommand(
            f"schedule {axes.schedule} over exchange {axes.exchange}",
            why="this exchange is not a reduce-scatter and an all-gather",
            remedy="--exchange allreduce",
        )
    if axes.compressor.loss != "none":
        yield WrongCommand(
            f"compressor {axes.compressor} with schedule {axes.schedule}",
            why="between reduce-scatter and all-gather a rank has only a part, which cannot be decoded",
            remedy="--compress none, or --schedule mgwfbp",
        )


def common_order(axes: Axes) -> Iterator[PacelineError]:
    """Refuse an exchange of several calls per chunk if rank 0 picks the order of chunks."""
    schedule, compressor = axes.schedule, axes.compressor
    if schedule.crosses_step and not axes.exchange.one_call:
        yield WrongCommand(
            f"schedule {schedule} over exchange {axes.exchange}",
            why="its chunks travel in several rounds, which all ranks must start in one order",
            remedy="--exchange allreduce, or --schedule mgwfbp",
        )
    if schedule.crosses_step and _rounds(compressor) > 1:
        yield WrongCommand(
            f"compressor {compressor} with schedule {schedule}",
            why="it needs several rounds per chunk, which all ranks must start in one order",
            remedy="--schedule mgwfbp",
        )


def _rounds(compressor: Compressor) -> int:
    """Return the rounds of a small chunk among four ranks.

    Among two, a compressor that merges in pairs has only one round.
    """
    return len(compressor.wires(Layout((Slot("x", 64),)), Chunk(0, 0, 64), 4))


def _word(text: str) -> str:
    return parse(text).word.lower()


def one_step_for_all(run: Run, axes: Axes) -> Iterator[PacelineError]:
    """Refuse loss scaling unless the gradient is the same on every rank, so that all ranks skip the same steps."""
    if run.precision == "fp16" and axes.rule.leaves != "backward":
        yield WrongCommand(
            f"--precision fp16 with rule {axes.rule}",
            why="ranks update by themselves, and one that overflows could not make the others skip",
            remedy="--precision bf16, or --rule grad",
        )


def outer_optimizer(run: Run, axes: Axes) -> Iterator[PacelineError]:
    """Refuse an outer optimizer that torch.optim does not have, or that needs a closure."""
    text = axes.rule.own_optimizer
    if not text:
        return
    if _word(text) == "lbfgs":
        yield WrongCommand(
            f"rule {axes.rule}",
            why="lbfgs evaluates the model again, and an outer gradient is no gradient of a loss",
            remedy=f"--rule '{axes.rule.name}(outer=adamw(lr=0.01))'",
        )
    yield from wrong_optimizer(text, "outer={} of rule " + axes.rule.name, f"--rule '{axes.rule.name}(outer={{}})'")


def one_sided_comm(run: Run, axes: Axes) -> Iterator[PacelineError]:
    if axes.exchange.asynchronous and not kind_of(run.comm).one_sided:
        yield WrongCommand(
            f"--comm {run.comm} with exchange {axes.exchange}",
            why="it has no one-sided calls",
            remedy="CUDA_VISIBLE_DEVICES= and --comm auto, to train on CPUs",
        )


def sound_weights(axes: Axes, cluster: Cluster) -> Iterator[PacelineError]:
    """Check that the weights of the topology have the properties that the rule needs."""
    if axes.rule.needs == "neighbors" and not axes.exchange.takes_topology:
        yield WrongCommand(
            f"rule {axes.rule} over exchange {axes.exchange}",
            why="it splits its mass among neighbors of ranks, and this exchange has none",
            remedy="--exchange neighbor, or --rule atc",
        )
    if axes.topology is None:
        return
    size, count = mixers(axes, cluster), cluster.count
    if axes.rule.needs == "symmetric" and not axes.topology.symmetric(size, count):
        yield WrongCommand(
            f"rule {axes.rule} on topology {axes.topology}",
            why="it needs symmetric weights and diverges on a directed graph",
            remedy="--topology ring, or --rule gradient_tracking",
        )
    elif axes.rule.needs == "doubly stochastic" and not axes.topology.doubly_stochastic(size, count):
        yield WrongCommand(
            f"rule {axes.rule} on topology {axes.topology}",
            why="columns of its weights do not sum to one, so it would converge to a wrong mean",
            remedy="--rule push_sum or push_diging, or the default weights",
        )


def mixers(axes: Axes, cluster: Cluster) -> int:
    """Return the number of participants of neighbor averaging: all ranks, or all nodes if nodes average."""
    return cluster.size if axes.exchange.takes_topology else cluster.count


AXES_CHECKS: tuple[Callable[[Axes], Iterator[PacelineError]], ...] = (
    consensus_lanes,
    lossless_parameters,
    stale_lanes,
    elastic_steps_end,
    common_order,
    two_phases,
)
RUN_CHECKS: tuple[Callable[[Run, Axes], Iterator[PacelineError]], ...] = (
    update_on_servers,
    one_step_for_all,
    outer_optimizer,
    one_sided_comm,
    tensor_by_tensor,
    elastic_means_one_sum,
    only_elastic_jobs_go_on,
)
