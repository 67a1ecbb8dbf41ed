"""Schedulers of an optimizer are found, and their state moves to the same script in another process."""

import pytest
import torch
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR, LambdaLR, LinearLR, SequentialLR, StepLR

from paceline.errors import WrongCommand
from paceline.train.schedulers import restore, schedulers_of, states_of

MAKERS = {
    "step": lambda optimizer: [StepLR(optimizer, 2, 0.5)],
    "two of one class": lambda optimizer: [StepLR(optimizer, 2, 0.5), StepLR(optimizer, 3, 0.1)],
    "sequence": lambda optimizer: [
        SequentialLR(optimizer, [LinearLR(optimizer, 0.1, 1.0, 3), ExponentialLR(optimizer, 0.9)], [3])
    ],
    "chain": lambda optimizer: [ChainedScheduler([StepLR(optimizer, 2), ExponentialLR(optimizer, 0.9)])],
}


def made(make):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    return optimizer, make(optimizer)


def rates(optimizer, schedulers, steps):
    seen = []
    for _ in range(steps):
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        seen.append(optimizer.param_groups[0]["lr"])
    return seen


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("before", [1, 4])
def test_rates_go_on_where_they_were(kind, before):
    optimizer, schedulers = made(MAKERS[kind])
    rates(optimizer, schedulers, before)
    other, fresh = made(MAKERS[kind])
    other.load_state_dict(optimizer.state_dict())
    restore(schedulers_of(other), states_of(schedulers_of(optimizer)))
    assert rates(other, fresh, 6) == rates(optimizer, schedulers, 6)


@pytest.mark.parametrize("kind", MAKERS)
def test_without_their_state_rates_differ(kind):
    optimizer, schedulers = made(MAKERS[kind])
    rates(optimizer, schedulers, 1)
    other, fresh = made(MAKERS[kind])
    other.load_state_dict(optimizer.state_dict())
    assert rates(other, fresh, 6) != rates(optimizer, schedulers, 6)


@pytest.mark.parametrize("kind", MAKERS)
def test_only_whole_schedulers_of_this_optimizer_are_found(kind):
    optimizer, schedulers = made(MAKERS[kind])
    other, _ = made(MAKERS[kind])
    assert set(schedulers_of(optimizer)) == set(schedulers)
    assert other is not optimizer


def test_the_order_is_that_of_settings_whenever_schedulers_were_made():
    def both(first, second):
        return made(lambda optimizer: [StepLR(optimizer, first), StepLR(optimizer, second)])

    (one, _keep), (other, _too) = both(2, 3), both(3, 2)
    rates(one, _keep, 5)
    assert [scheduler.step_size for scheduler in schedulers_of(one)] == [2, 3]
    assert [scheduler.step_size for scheduler in schedulers_of(other)] == [2, 3]


def test_other_numbers_of_schedulers_are_refused():
    optimizer, schedulers = made(MAKERS["step"])
    states = states_of(schedulers_of(optimizer))
    with pytest.raises(WrongCommand, match="0 learning-rate schedulers") as raised:
        restore([], states)
    assert "before the first batch" in str(raised.value)
    assert schedulers


def test_a_state_that_a_snapshot_cannot_hold_stays_with_a_warning(capsys):
    optimizer, (scheduler,) = made(lambda optimizer: [LambdaLR(optimizer, lambda step: 0.5**step)])
    scheduler.friend = object()
    assert states_of(schedulers_of(optimizer)) == [None]
    assert "the state of LambdaLR does not travel" in capsys.readouterr().err
    del scheduler.friend
    assert states_of(schedulers_of(optimizer))[0]["last_epoch"] == 0
