"""References step through a user's own loop as a pace does."""

import contextlib

import pytest
import torch
from torch import nn

from paceline.comm.thread import ThreadComm, run_ranks
from paceline.engine.device import CpuDevice
from paceline.errors import WrongCommand
from paceline.train.references import ddp
from paceline.train.references.limit import Limit
from paceline.train.scaling import LossScale
from tests.train.problems import batches, flat, loss_of, mlp


class Unexchanged(nn.Module):
    """Takes the place of torch's DDP, which wants a process group."""

    def __init__(self, module, **settings):
        super().__init__()
        self.module, self.no_sync = module, contextlib.nullcontext

    def forward(self, *inputs):
        return self.module(*inputs)


@pytest.fixture(params=["limit", "ddp", "own loop"])
def reference(request, monkeypatch):
    monkeypatch.setattr(ddp, "DistributedDataParallel", Unexchanged)
    return {"limit": Limit, "ddp": ddp.Ddp, "own loop": ddp.OwnLoopDdp}[request.param]


def stepped(reference, accumulate=1, scaled=False, look=False, **settings):
    """Weights after four updates on the same batch, which is seen `accumulate` times for each."""

    def work(comm):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pace = reference(model, optimizer, comm=comm, device=CpuDevice(), accumulate=accumulate, **settings)
        for x, y in batches(steps=4):
            for micro in range(accumulate):
                loss = loss_of(model, x, y)
                (pace.scaled(loss) if scaled else loss).backward()
                if look and micro + 1 == accumulate:
                    pace.synchronize()
                pace.step()
        pace.close()
        return flat(model)

    return run_ranks(1, work)[0]


@pytest.mark.parametrize("settings", [{}, {"clip_norm": 0.05}], ids=str)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("look", [False, True])
def test_accumulated_gradients_are_averaged_whether_or_not_the_loop_scales_its_loss(reference, scaled, look, settings):
    once = stepped(reference, **settings)
    assert (stepped(reference, accumulate=4, scaled=scaled, look=look, **settings) - once).abs().max() < 1e-6


def test_a_loss_scale_is_taken_out_once(reference):
    scaled = stepped(reference, accumulate=2, scaled=True, loss_scale=LossScale(value=1024.0))
    assert (scaled - stepped(reference)).abs().max() < 1e-6


def test_a_closure_is_evaluated_as_often_as_the_optimizer_likes(reference):
    def train(model, step):
        for x, y in batches(torch.float64, steps=4):
            step(lambda x=x, y=y: backward(loss_of(model, x, y)))
        return flat(model)

    def backward(loss):
        loss.backward()
        return loss

    def alone():
        model = mlp(torch.float64)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
        return train(model, lambda closure: optimizer.step(lambda: (optimizer.zero_grad(), closure())[1]))

    def work(comm):
        model = mlp(torch.float64)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
        pace = reference(model, optimizer, comm=comm, device=CpuDevice())
        weights = train(model, pace.step)
        pace.close()
        return weights, pace.steps

    weights, steps = run_ranks(1, work)[0]
    assert steps == 4
    assert torch.equal(weights, alone())


def test_ddp_shows_a_closure_the_mean_loss_so_that_ranks_evaluate_as_often(monkeypatch):
    monkeypatch.setattr(ddp, "DistributedDataParallel", Unexchanged)

    def work(comm):
        model, seen = nn.Linear(1, 1), []
        optimizer = torch.optim.LBFGS(model.parameters())
        optimizer.step = lambda evaluate: seen.append(evaluate().item())
        pace = ddp.Ddp(model, optimizer, comm=comm, device=CpuDevice())
        pace.step(lambda: torch.tensor(comm.rank + 1.0))
        pace.close()
        return seen

    assert run_ranks(2, work) == [[1.5]] * 2


def test_a_closure_while_accumulating_is_refused_as_a_pace_does(reference):
    def work(comm):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pace = reference(model, optimizer, comm=comm, device=CpuDevice(), accumulate=2)
        try:
            pace.step(lambda: torch.zeros(1))
        finally:
            pace.close()

    with pytest.raises(WrongCommand, match=r"step\(closure\) with accumulate"):
        run_ranks(1, work)


@pytest.mark.parametrize(("accumulate", "expected"), [(1, [True] * 6), (3, [False, False, True] * 2)])
def test_ddp_in_a_users_loop_exchanges_in_the_last_backward_of_an_update(accumulate, expected, monkeypatch):
    exchanged = []

    class Noting(Unexchanged):
        def __init__(self, module, **settings):
            super().__init__(module, **settings)
            self.no_sync, self.held = self.holding, False

        @contextlib.contextmanager
        def holding(self):
            self.held = True
            yield
            self.held = False

        def forward(self, *inputs):
            exchanged.append(not self.held)
            return super().forward(*inputs)

    monkeypatch.setattr(ddp, "DistributedDataParallel", Noting)

    def work(comm):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pace = ddp.OwnLoopDdp(model, optimizer, comm=comm, device=CpuDevice(), accumulate=accumulate)
        for x, y in batches(steps=6):
            loss_of(model, x, y).backward()
            pace.step()
        with torch.no_grad():
            model(x)  # the rank that evaluates does so alone
        model.eval()(x)
        pace.close()

    run_ranks(1, work)
    assert exchanged == expected


@pytest.mark.parametrize(("kind", "meetings"), [(Limit, 4), (ddp.Ddp, 0)])
def test_ranks_of_limit_meet_once_per_update_and_ddp_meets_by_itself(kind, meetings, monkeypatch):
    met = []
    monkeypatch.setattr(ddp, "DistributedDataParallel", Unexchanged)
    monkeypatch.setattr(ThreadComm, "barrier", lambda comm: met.append(comm.rank))
    stepped(kind, accumulate=2)
    assert met == [0] * meetings


def test_a_step_of_the_optimizer_is_a_step_of_the_reference(reference):
    """As with a strategy, so that a script that calls optimizer.step() can be raced."""

    def work(comm):
        model, noted = mlp(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pace = reference(model, optimizer, comm=comm, device=CpuDevice())
        pace.on_step = lambda: noted.append(pace.steps)
        pace.take_over()
        for x, y in batches(steps=4):
            optimizer.zero_grad()
            with pace.no_sync():
                pass
            loss_of(model, x, y).backward()
            optimizer.step()
        pace.close()
        optimizer.step()  # the optimizer's own again
        return noted, flat(model)

    noted, weights = run_ranks(1, work)[0]
    assert noted == [1, 2, 3, 4]
    assert torch.equal(weights, stepped(reference))
