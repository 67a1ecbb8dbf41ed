import copy

import pytest
import torch
from torch import nn

from paceline.api import join as joining
from paceline.api.wrap import wrap
from paceline.comm.thread import run_ranks
from paceline.engine.device import CpuDevice
from paceline.errors import WorkloadError
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.pace import Pace
from paceline.train.scaling import LossScale
from tests.train.problems import batches, flat, loss_of, mlp


def pace_of(comm, model, optimizer=None, **settings):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return Pace(model, optimizer, comm=comm, axes=compose(Run(workers=comm.size)).axes, **settings)


def test_a_parameter_unused_on_every_rank_keeps_no_gradient():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    def work(comm):
        model = Half()
        # weight decay moves every parameter that has a gradient, even a zero one
        pace = pace_of(comm, model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5))
        before = copy.deepcopy(model.idle.state_dict())
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            pace.step()
        return [torch.equal(before[key], model.idle.state_dict()[key]) for key in before]

    assert run_ranks(2, work) == [[True, True]] * 2


def test_a_parameter_unused_on_one_rank_gets_the_mean_of_the_others():
    class Switch(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def work(comm):
        model = Switch()
        pace = pace_of(comm, model, torch.optim.SGD(model.parameters(), lr=1.0))
        for _ in range(2):
            (model.a if comm.rank else model.b).sum().backward()
            pace.step()
        return flat(model).tolist()

    assert run_ranks(2, work) == [[-1.0, -1.0]] * 2


class Heads(nn.Module):
    """Two heads of which a batch uses one."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)])
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, x, head):
        return self.heads[head](x)


@pytest.mark.parametrize("axes", [{}, {"schedule": "dear"}, {"schedule": "priority"}], ids=str)
@pytest.mark.parametrize("last", [0, 1])
def test_a_gradient_of_an_earlier_backward_counts_if_the_last_did_not_reach_it(axes, last):
    def work(comm):
        model = Heads()
        chosen = compose(Run(workers=comm.size, accumulate=2, **axes)).axes
        pace = Pace(model, torch.optim.SGD(model.parameters(), lr=1.0), comm=comm, axes=chosen, accumulate=2)
        for _ in range(8):
            for head in (1 - last, last):
                model(torch.tensor([[1.0, float(comm.rank)]]), head).sum().backward()
                pace.step()
        pace.finish()
        return flat(model).tolist()

    # each of eight updates is half of the mean gradient (1, 0.5)
    assert run_ranks(2, work) == [[-3.0, -1.0] * 2] * 2


def test_a_gradient_that_was_put_there_by_hand_is_exchanged():
    def work(comm):
        model = Heads()
        pace = pace_of(comm, model, torch.optim.SGD(model.parameters(), lr=1.0))
        model.heads[0].weight.grad = torch.ones(1, 2)
        model.heads[1].weight.grad = torch.full((1, 2), float(comm.rank))
        pace.step()
        return flat(model).tolist()

    assert run_ranks(2, work) == [[0.0, 0.0, 0.5, 0.5]] * 2


def test_shared_and_frozen_parameters_and_groups():
    original = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4))

    def build():
        model = copy.deepcopy(original)
        model[1].weight = model[0].weight
        model[2].bias.requires_grad_(False)
        groups = [{"params": [model[0].weight], "lr": 0.05}, {"params": [model[0].bias, model[2].weight]}]
        return model, torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    model, optimizer = build()
    for x, y in batches(steps=5):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    expected = flat(model)

    def work(comm):
        model, optimizer = build()
        pace = pace_of(comm, model, optimizer)
        for x, y in batches(steps=5):
            share = slice(comm.rank * 12, comm.rank * 12 + 12)
            loss_of(model, x[share], y[share]).backward()
            pace.step()
        return flat(model)

    for weights in run_ranks(2, work):
        assert (weights - expected).abs().max() < 1e-5


def test_global_norm_clipping_equals_torch():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for x, y in batches(steps=5):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    expected = flat(model)

    def work(comm):
        model = mlp()
        pace = pace_of(comm, model, torch.optim.SGD(model.parameters(), lr=0.5), clip_norm=0.1)
        for x, y in batches(steps=5):
            share = slice(comm.rank * 12, comm.rank * 12 + 12)
            loss_of(model, x[share], y[share]).backward()
            pace.step()
        return flat(model)

    for weights in run_ranks(2, work):
        assert (weights - expected).abs().max() < 1e-5


def test_a_user_may_change_gradients_between_synchronize_and_step():
    def work(comm):
        model = mlp()
        before = flat(model)
        pace = pace_of(comm, model)
        for x, y in batches(steps=3):
            loss_of(model, x, y).backward()
            pace.synchronize()
            for parameter in model.parameters():
                parameter.grad.zero_()
            pace.step()
        return torch.equal(before, flat(model))

    assert run_ranks(2, work) == [True, True]


def test_an_optimizer_that_writes_gradients_through_data_works_on_a_copy():
    class Old(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.data.mul_(2.0)
            return super().step(closure)

    def work(comm):
        model = mlp()
        pace = pace_of(comm, model, Old(model.parameters(), lr=0.05))
        for x, y in batches(steps=10):
            loss_of(model, x, y).backward()
            pace.step()
        return flat(model)

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(steps=10):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    for weights in run_ranks(2, work):
        assert (weights - flat(model)).abs().max() < 1e-5


class Late(torch.optim.SGD):
    """Writes into gradients after its first step."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        if self.calls > 1:
            self.param_groups[0]["params"][0].grad.mul_(2.0)
        return super().step(closure)


@pytest.mark.parametrize("settings", [{}, {"private_gradients": True}], ids=str)
def test_an_optimizer_may_start_to_write_gradients_at_any_time(settings):
    def train(model, optimizer, step, share=slice(None)):
        for x, y in batches(steps=3):
            optimizer.zero_grad()
            loss_of(model, x[share], y[share]).backward()
            step()
        return flat(model)

    def work(comm):
        joining._current.set(joining.Worker(comm, CpuDevice()))
        model = mlp()
        optimizer = Late(model.parameters(), lr=0.1)
        pace = wrap(model, optimizer, **settings)
        return train(model, optimizer, pace.step, slice(comm.rank * 12, comm.rank * 12 + 12))

    model = mlp()
    optimizer = Late(model.parameters(), lr=0.1)
    expected = train(model, optimizer, optimizer.step)
    first, second = run_ranks(2, work)
    assert torch.equal(first, second)
    assert (first - expected).abs().max() < 1e-5


def test_push_sum_keeps_its_mass_where_parameters_are_cast():
    def work(comm):
        model = mlp()
        axes = compose(Run(workers=comm.size, rule="push_sum", exchange="neighbor(star)", compress="cast")).axes
        pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, axes=axes)
        for x, y in batches(steps=5):
            loss_of(model, x, y).backward()
            pace.step()
        return pace.duty.p

    masses = run_ranks(3, work)
    assert sum(masses) == pytest.approx(3, abs=1e-6)
    assert min(masses) < 0.9, "the center has more than its neighbors"


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(WorkloadError, match="Identity has nothing to train"):
        run_ranks(1, lambda comm: pace_of(comm, nn.Identity(), torch.optim.SGD([torch.zeros(1)], lr=0.1)))


def test_several_dtypes_travel_in_arenas_of_their_own():
    def work(comm):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double(), nn.Linear(4, 2))
        pace = pace_of(comm, model)
        for step in range(3):
            x = torch.full((1, 4), float(comm.rank + step))
            model[2](model[1](model[0](x).double()).float()).sum().backward()
            pace.step()
        return flat(model), len(pace.engines[0].arenas)

    (first, arenas), (second, _) = run_ranks(2, work)
    assert arenas == 2
    assert torch.equal(first, second)


def test_sparse_gradients_are_exchanged_dense():
    def work(comm):
        model = nn.Embedding(10, 3, sparse=True)
        nn.init.zeros_(model.weight)
        pace = pace_of(comm, model, torch.optim.SGD(model.parameters(), lr=1.0))
        for _ in range(2):
            model(torch.tensor([comm.rank])).sum().backward()
            pace.step()
        return model.weight[:3, 0].tolist()

    assert run_ranks(2, work) == [[-1.0, -1.0, 0.0]] * 2


def test_channels_last_parameters_keep_their_format():
    def work(comm):
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        pace = pace_of(comm, model)
        strides = model.weight.stride()
        for _ in range(2):
            model(torch.ones(1, 3, 5, 5).to(memory_format=torch.channels_last)).sum().backward()
            assert pace.step()
        return model.weight.stride() == strides, pace.engines[0].source(0).shape

    assert all(kept for kept, _ in run_ranks(2, work))


def test_batchnorm_statistics_are_local_and_averaged_for_evaluation():
    def work(comm):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        pace = pace_of(comm, model)
        for _ in range(3):
            model(torch.full((8, 4), float(comm.rank))).sum().backward()
            pace.step()
        own = model[1].running_mean.clone()
        with pace.averaged():
            inside = model[1].running_mean.clone()
        return own, inside, model[1].running_mean.clone()

    found = run_ranks(2, work)
    assert not torch.equal(found[0][0], found[1][0])
    mean = (found[0][0] + found[1][0]) / 2
    for own, inside, after in found:
        assert torch.allclose(inside, mean)
        assert torch.equal(own, after)


def test_an_overflow_on_one_rank_skips_the_step_on_all():
    def work(comm):
        model = mlp()
        scale = LossScale(value=1024.0)
        pace = pace_of(comm, model, loss_scale=scale)
        outcomes, before = [], flat(model)
        for step, (x, y) in enumerate(batches(steps=3)):
            factor = float("inf") if comm.rank == 1 and step == 0 else 1.0
            (pace.scaled(loss_of(model, x, y)) * factor).backward()
            outcomes.append(pace.step())
            if step == 0:
                assert torch.equal(before, flat(model))
        return outcomes, scale.value, scale.skipped, flat(model)

    (first, scale, skipped, weights), (second, _, _, others) = run_ranks(2, work)
    assert first == second == [False, True, True]
    assert (scale, skipped) == (512.0, 1)
    assert torch.equal(weights, others)


def test_scaling_the_loss_does_not_change_the_result():
    def work(comm, scale):
        model = mlp()
        pace = pace_of(comm, model, loss_scale=scale)
        for x, y in batches(steps=5):
            pace.scaled(loss_of(model, x, y)).backward()
            pace.step()
        return flat(model)

    scaled = run_ranks(2, lambda comm: work(comm, LossScale()))
    plain = run_ranks(2, lambda comm: work(comm, None))
    assert (scaled[0] - plain[0]).abs().max() < 1e-6


def test_lbfgs_evaluates_the_model_again_and_ranks_stay_equal():
    def train(model, step, data):
        for x, y in data:
            step(lambda x=x, y=y: backward(model, x, y))

    def backward(model, x, y):
        model.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        return loss

    model = mlp(torch.float64)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    train(model, optimizer.step, batches(torch.float64, steps=4))
    expected = flat(model)

    def work(comm):
        model = mlp(torch.float64)
        pace = pace_of(comm, model, torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4))
        share = slice(comm.rank * 12, comm.rank * 12 + 12)
        train(model, pace.step, [(x[share], y[share]) for x, y in batches(torch.float64, steps=4)])
        return flat(model)

    first, second = run_ranks(2, work)
    assert torch.equal(first, second)
    assert (first - expected).abs().max() < 1e-8


def test_arenas_follow_the_order_in_which_gradients_come():
    def work(comm):
        model = mlp()
        pace = pace_of(comm, model)
        x, y = next(batches())
        loss_of(model, x, y).backward()
        order = list(pace.engines[0].arrived)
        names = [pace.engines[0].name_of(slot) for slot in order]
        pace.step()
        return names == [slot.name for slot in pace.engines[0].arenas[0].layout.slots]

    assert run_ranks(2, work) == [True, True]


def test_a_checkpoint_keeps_the_order_of_the_arena():
    class Late(nn.Module):
        """Registered in the order in which gradients become ready, so that the arena must turn around."""

        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.last(self.first(x))

    def stepped(pace):
        pace.model(torch.ones(1, 2)).sum().backward()
        pace.step()
        return pace.engines[0].names

    def work(comm):
        begun, first, resumed = pace_of(comm, Late()), pace_of(comm, Late()), pace_of(comm, Late())
        before, learned = first.engines[0].names, stepped(first)
        resumed.load_state_dict(begun.state_dict())  # of nothing there is nothing to learn
        unlearned = resumed.engines[0].names
        resumed.load_state_dict(first.state_dict())
        return before == unlearned != learned == resumed.engines[0].names == stepped(resumed)

    assert run_ranks(2, work) == [True, True]


def test_state_dict_keys_stay_the_users_own():
    model = mlp()
    keys = list(model.state_dict())
    run_ranks(1, lambda comm: pace_of(comm, model))
    assert list(model.state_dict()) == keys


def test_the_pace_state_survives_a_checkpoint():
    def work(comm):
        pace = pace_of(comm, mlp(), loss_scale=LossScale(value=8.0))
        saved = pace.state_dict()
        other = pace_of(comm, mlp(), loss_scale=LossScale())
        other.load_state_dict(saved)
        return other.loss_scale.value

    assert run_ranks(1, work) == [8.0]
