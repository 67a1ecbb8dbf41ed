"""Time to accuracy: virtual replicas train in one process, and every step takes its forecast time.

    threads   rank 0 .. n-1: the rules, exchanges and compressors of a real job     ->  loss, accuracy after k steps
    forecast  seconds of a step of the strategy on the machines                     ->  k steps in predicted seconds

The numerics are those of n workers. The curve belongs to the model and the data that were trained here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import PacelineError, WrongCommand
from paceline.forecast.study import Point, Study
from paceline.run.compose.compose import compose
from paceline.run.run import Run

MOST = 64  # replicas: all of them are computed here
LOOKS = 5  # points of a curve


@dataclass(frozen=True)
class Stage:
    """The state of a training after some steps: predicted seconds, mean loss of the last steps, test accuracy."""

    steps: int
    seconds: float
    loss: float
    accuracy: float | None


@dataclass(frozen=True)
class Curve:
    """One strategy: the stages of its training, or the reason why it was not trained."""

    strategy: str
    looks: tuple[Stage, ...] = ()
    problem: str = ""


def learn(study: Study, run: Run, steps: int, tell: Callable[[str], None] = lambda line: None) -> list[Curve]:
    """Train every strategy of a study with the largest number of workers; `run` has source, optimizer and seed."""
    workers = study.workers[-1]
    if workers > MOST:
        raise WrongCommand(
            f"--learn on {workers:,} workers",
            why=f"all replicas are computed in this process, at most {MOST}",
            remedy=f"--workers {MOST}",
        )
    curves = []
    for point in study.points:
        if point.workers == workers and not point.is_bound:
            tell(f"training {point.strategy} on {workers} virtual replicas")
            curves.append(_curve(study, point, run, steps))
    return curves


def _curve(study: Study, point: Point, run: Run, steps: int) -> Curve:
    if point.outlook is None or point.axes is None:
        return Curve(point.strategy, problem=point.problem)
    if point.axes.rule.bound is None or point.axes.exchange.asynchronous:
        return Curve(point.strategy, problem="its result depends on the order in which workers arrive")
    if point.axes.exchange.servers:
        return Curve(point.strategy, problem="it has servers beside the workers, and replicas have none")
    fabric = study.fabric.resized(point.workers)
    nodes = f"{fabric.nodes}x{fabric.ranks}" if fabric.nodes > 1 else None
    wanted = run.with_(workers=fabric.size, strategy=point.strategy, nodes=nodes)
    try:
        seen = train(wanted, fabric.cluster.nodes, _counts(steps))
    except PacelineError as problem:
        return Curve(point.strategy, problem=str(problem).splitlines()[0])
    step = point.outlook.step
    return Curve(point.strategy, tuple(Stage(count, count * step, loss, right) for count, loss, right in seen))


def _counts(steps: int) -> list[int]:
    """Return the numbers of steps after which training is evaluated; the last one is its end."""
    return sorted({max(1, round(steps * (k + 1) / LOOKS)) for k in range(LOOKS)})


def train(run: Run, nodes: Sequence[int], counts: Sequence[int]) -> list[tuple[int, float, float | None]]:
    """Train one replica per thread. Return the steps, the mean loss and the accuracy of each evaluation."""
    import torch

    from paceline.comm.thread import run_ranks
    from paceline.measure.meter import Meter
    from paceline.train.build import training_of
    from paceline.train.evaluate import accuracy

    composed = compose(run)

    def replica(comm: Any) -> list[tuple[int, float, float | None]]:
        comm.placement = tuple(nodes)
        training = training_of(composed, comm)
        seen, done = [], 0
        for count in counts:
            training.steps(count - done, Meter())
            losses = torch.tensor([sum(training.losses[done:]) / (count - done)], dtype=torch.float64)
            total, done = torch.zeros_like(losses), count
            comm.all_sum(losses, total, "losses").wait()
            grade = accuracy(training, comm)
            seen.append((count, float(total) / comm.size, None if grade is None else grade["value"]))
        return seen

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # replicas share the cores
    try:
        first: list[tuple[int, float, float | None]] = run_ranks(run.workers, replica)[0]
    finally:
        torch.set_num_threads(before)
    return first


def spoken(study: Study, run: Run, curves: Sequence[Curve]) -> Iterator[str]:
    """Yield the curves as a table: loss, and accuracy if there is one, against predicted time."""
    yield f"trained here: {run.model} on {run.source}, {study.workers[-1]} virtual replicas, on the forecast's clock"
    graded = any(look.accuracy is not None for curve in curves for look in curve.looks)
    yield (
        f"{'':24} {'steps':>7} {'seconds':>9} {'loss':>9}{'accuracy':>10}"
        if graded
        else (f"{'':24} {'steps':>7} {'seconds':>9} {'loss':>9}")
    )
    for curve in curves:
        for k, look in enumerate(curve.looks):
            name = curve.strategy if k == 0 else ""
            right = f"{look.accuracy:>10.4f}" if look.accuracy is not None else ""
            yield f"{name[:24]:24} {look.steps:>7,} {look.seconds:>9,.2f} {look.loss:>9.4f}{right}"
        if curve.problem:
            yield f"{curve.strategy[:24]:24} not trained: {curve.problem}"
    yield "The curves belong to this model and this data, not to other ones."
