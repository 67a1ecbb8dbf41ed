"""The loss scale falls after an overflow and rises after some good steps."""

import random

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.errors import NonFinite
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.pace import Pace
from paceline.train.scaling import LossScale


@pytest.mark.parametrize(
    ("finite", "values"),
    [
        ([True] * 4, [2, 4, 4, 8]),
        ([False, False, False], [1, 0.5, 0.25]),  # below one as well
        ([True, False, True, True], [2, 1, 1, 2]),  # good steps are counted anew
    ],
)
def test_a_scale_doubles_after_its_patience_and_halves_at_once(finite, values):
    scale = LossScale(value=2.0, patience=2)
    seen = []
    for step in finite:
        scale.record(step)
        seen.append(scale.value)
    assert seen == values
    assert scale.skipped == finite.count(False)


def of_torch(steps, start, interval):
    """The scales of torch's own GradScaler after each step; a step is whether its gradient was finite."""
    scaler = torch.amp.GradScaler("cpu", init_scale=start, growth_interval=interval)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for finite in steps:
        optimizer.zero_grad()
        scaler.scale((weight * (1.0 if finite else float("inf"))).sum()).backward()
        if finite:
            weight.grad.fill_(1.0)  # a scale that is large enough overflows by itself
        scaler.step(optimizer)
        scaler.update()
        yield scaler.get_scale()


@pytest.mark.parametrize(
    ("start", "interval", "overflows"),
    [(2.0**16, 3, 0.5), (2.0**16, 5, 0.1), (1.0, 4, 0.3), (2.0**120, 1, 0.05), (3.0, 2, 0.4)],
)
def test_a_scale_moves_as_that_of_torch(start, interval, overflows):
    dice = random.Random(7)
    steps = [dice.random() >= overflows for _ in range(200)]
    scale, seen = LossScale(value=start, patience=interval), []
    for finite in steps:
        scale.record(finite)
        seen.append(scale.value)
    assert seen == list(of_torch(steps, start, interval))


def test_gradients_that_overflow_at_one_are_trained_with_a_smaller_scale():
    def work(comm):
        model = torch.nn.ParameterList([torch.zeros(1)])
        pace = Pace(
            model,
            torch.optim.SGD(model.parameters(), lr=1e-5),
            comm=comm,
            axes=compose(Run(workers=comm.size)).axes,
            loss_scale=LossScale(value=4.0),
        )
        committed = []
        for _ in range(6):
            pace.scaled((model[0].half().float() * 80_000).sum()).backward()  # fp16 ends at 65504
            committed.append(pace.step())
        return committed, pace.loss_scale.value, float(model[0].detach())

    moved = pytest.approx(-3 * 0.8, rel=1e-3)
    assert run_ranks(2, work) == [([False, False, False, True, True, True], 0.5, moved)] * 2


def test_a_step_that_always_overflows_ends_training():
    scale = LossScale()
    for _ in range(142):
        scale.record(False)
    with pytest.raises(NonFinite, match=r"143 steps overflowed.*no scale of the loss"):
        scale.record(False)
