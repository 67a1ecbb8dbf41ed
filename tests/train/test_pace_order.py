"""Ranks send in the same order, even if a parameter is unused on some of them."""

import time

import pytest
import torch
from torch import nn

from paceline.api import collectives as calls
from paceline.api import join as joining
from paceline.api.wrap import wrap
from paceline.comm.thread import run_ranks
from paceline.engine.device import CpuDevice
from paceline.errors import PacelineError, WorkloadError, WrongCommand
from tests.train.problems import flat

WIDE = 64
SCHEDULES = ["fusion", "wfbp", "dear", "priority"]


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = ones(), ones()

    def forward(self, x, both):
        return self.a(x) + (self.b(x) if both else 0)


def ones():
    layer = nn.Linear(WIDE, 1, bias=False)
    nn.init.ones_(layer.weight)
    return layer


def on_ranks(work, size=2):
    def body(comm):
        worker = joining.Worker(comm, CpuDevice())
        joining._current.set(worker)
        try:
            return work(worker)
        finally:
            joining._current.set(None)

    return run_ranks(size, body)


def wrapped(model, lr=0.1, **choices):
    return wrap(model, torch.optim.SGD(model.parameters(), lr=lr), **choices)


def loss_at(model, worker, step):
    """On rank 1, b is unused from the second step on."""
    return model(torch.full((1, WIDE), (step + 1.0) * (worker.rank + 1)), worker.rank == 0 or step == 0).sum() / WIDE


def trained(worker, schedule):
    """A model after six steps."""
    model = Branches()
    pace = wrapped(model, schedule=schedule)
    for step in range(6):
        loss_at(model, worker, step).backward()
        pace.step()
    return model, pace


def branches(between, *, slow=None, steps=8, **choices):
    """Losses that were averaged, and weights, of a run that looks at the loss between backward and step or after it."""

    def work(worker):
        model = Branches()
        pace, seen = wrapped(model, **choices), []
        for step in range(steps):
            for _ in range(choices.get("accumulate", 1)):
                loss = loss_at(model, worker, step)
                loss.backward()
                if worker.rank == slow:
                    time.sleep(0.01)
                if between:
                    seen.append(between(pace, loss))
                pace.step()
                if not between:
                    seen.append(mean_of(pace, loss))
        pace.finish()
        return seen, flat(model).tolist()

    return on_ranks(work)


def mean_of(pace, loss):
    return calls.allreduce(loss.detach()).item()


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_collective_between_backward_and_step_changes_nothing(schedule, slow):
    expected = branches(None, schedule=schedule)
    assert branches(mean_of, slow=slow, schedule=schedule) == expected
    assert expected[0] == expected[1]


@pytest.mark.parametrize("choices", [{"accumulate": 2}, {"clip_norm": 0.5}, {"compress": "cast(fp16)"}], ids=str)
def test_so_it_is_with_other_choices(choices):
    expected = branches(None, **choices)
    assert branches(mean_of, slow=1, **choices) == expected


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_saving_finishing_and_synchronize_may_come_between_too(schedule):
    def busy(pace, loss):
        pace.state_dict()
        pace.finish()
        with pace.averaged():
            mean = mean_of(pace, loss)
        pace.synchronize()
        pace.finish()
        return mean

    expected = branches(None, schedule=schedule)
    for (seen, weights), (plain, others) in zip(branches(busy, schedule=schedule), expected, strict=True):
        assert seen == pytest.approx(plain)
        assert weights == pytest.approx(others)


def test_a_closure_may_call_a_collective():
    def work(worker):
        model = Branches()
        pace = wrap(model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3))
        seen = []

        def closure():
            loss = loss_at(model, worker, len(seen)) ** 2
            loss.backward()
            seen.append(mean_of(pace, loss))
            return loss

        for _ in range(2):
            pace.step(closure)
        return seen, flat(model).tolist()

    first, second = on_ranks(work)
    assert first == second


def test_backwards_of_two_parts_of_a_model_are_two_exchanges():
    def work(worker):
        model = Branches()
        pace = wrapped(model)
        model.a(torch.full((1, WIDE), 1.0 + worker.rank)).sum().backward()
        pace.finish()
        model.b(torch.full((1, WIDE), 3.0 + worker.rank)).sum().backward()
        return [model.a.weight.grad[0, 0].item(), model.b.weight.grad[0, 0].item()]

    assert on_ranks(work) == [[1.5, 3.5]] * 2


@pytest.mark.parametrize("schedule", ["fusion", "dear"])
def test_a_checkpoint_may_be_loaded_between_backward_and_step(schedule):
    def work(worker):
        model, pace = trained(worker, schedule)
        state = pace.state_dict()
        loss_at(model, worker, 6).backward()
        pace.load_state_dict(state)
        loss_at(model, worker, 7).backward()
        pace.step()
        pace.finish()
        return flat(model).tolist(), pace.steps

    first, second = on_ranks(work)
    assert first == second
    assert first[1] == 7


def test_a_backward_whose_ranks_have_left_ends_with_their_names():
    def work(worker):
        model, _ = trained(worker, "fusion")
        if worker.first:
            model.b(torch.ones(1, WIDE)).sum().backward()
        worker.close()

    with pytest.raises(PacelineError, match="rank 1"):
        on_ranks(work)


def test_a_step_that_one_rank_gives_up_does_not_hold_its_end_up():
    def work(worker):
        model, pace = trained(worker, "dear")
        pace.finish()
        if worker.first:
            model.b(torch.ones(1, WIDE)).sum().backward()
        worker.close()
        return pace.steps

    assert on_ranks(work) == [6, 6]


@pytest.mark.parametrize("slow", [0, 1, None])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_models_of_which_a_rank_leaves_one_out(schedule, slow):
    def work(worker):
        a, b = ones(), ones()
        paces = [wrapped(a, schedule=schedule), wrapped(b, schedule=schedule)]
        for step in range(8):
            x = torch.full((1, WIDE), (step + 1.0) * (worker.rank + 1))
            y = b(x) + (a(x) if worker.rank == 0 or step == 0 else 0)
            (y.sum() / WIDE).backward()
            if worker.rank == slow:
                time.sleep(0.01)
            mean = calls.allreduce(torch.tensor([worker.rank + step * 1.0])).item()
            assert mean == step + 0.5
            for pace in paces:
                pace.step()
        return flat(b).tolist(), flat(a).tolist()

    together = branches(None, schedule=schedule)[0][1]
    for b, a in on_ranks(work):
        assert b == pytest.approx(together[:WIDE])  # which is used on every rank, as b is here
        assert a == pytest.approx(together[WIDE:])


def test_the_mean_is_there_after_backward_with_one_model_and_with_several():
    def work(worker):
        def mean(model, pace):
            model(torch.full((1, WIDE), 1.0 + worker.rank)).sum().backward()
            value = model.weight.grad[0, 0].item()
            pace.step()
            return value

        a, b = ones(), ones()
        first = wrapped(a)
        means = [mean(a, first)]
        second = wrapped(b)
        means += [mean(a, first), mean(b, second)]
        first.close()
        second.close()
        return [*means, mean(a, wrapped(a))]

    assert on_ranks(work) == [[1.5] * 4] * 2


def test_a_model_is_wrapped_once():
    def work(worker):
        model = Branches()
        wrapped(model)
        wrapped(nn.Sequential(model.b))

    with pytest.raises(WrongCommand, match=r"wrap of Sequential: its 0.weight is wrapped already.*close\(\)"):
        on_ranks(work, size=1)


class Averaged(torch.autograd.Function):
    """The mean over ranks, in forward and in backward, as layers that normalize over ranks have it."""

    @staticmethod
    def forward(context, x):
        return calls.allreduce(x)

    @staticmethod
    def backward(context, gradient):
        return calls.allreduce(gradient)


@pytest.mark.parametrize("schedule", ["fusion", "wfbp"])
def test_a_collective_inside_backward_takes_its_place(schedule):
    def work(worker):
        first, last = ones(), nn.Linear(1, 1)
        nn.init.ones_(last.weight)
        model = nn.Sequential(first, last)
        pace = wrapped(model, schedule=schedule)
        for _ in range(3):
            last(Averaged.apply(first(torch.full((1, WIDE), worker.rank + 1.0) / WIDE))).sum().backward()
            pace.step()
        return flat(model).tolist()

    one, two = on_ranks(work)
    assert one == two
    assert one[0] != 1.0


def test_models_may_share_what_is_frozen():
    def work(worker):
        backbone, heads = ones().requires_grad_(False), (nn.Linear(1, 1), nn.Linear(1, 1))
        paces = [wrapped(nn.Sequential(backbone, head)) for head in heads]
        for head, pace in zip(heads, paces, strict=True):
            head(backbone(torch.ones(1, WIDE))).sum().backward()
            assert pace.step()
        return flat(heads[1]).tolist()

    one, two = on_ranks(work)
    assert one == two


def test_with_several_models_and_a_schedule_that_crosses_a_gradient_after_synchronize_is_refused():
    def work(worker):
        a, b = ones(), ones()
        first, _ = wrapped(a, schedule="dear"), wrapped(b, schedule="dear")
        a(torch.ones(1, WIDE)).sum().backward()
        first.synchronize()
        (a(torch.ones(1, WIDE)) + b(torch.ones(1, WIDE))).sum().backward()

    with pytest.raises(WorkloadError, match="weight got a gradient too late for step 0"):
        on_ranks(work, size=1)
