"""Training with compressed gradients: residuals survive the new order of the arena and checkpoints."""

import copy

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.errors import NonFinite, WrongCommand
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.pace import Pace
from tests.train.problems import batches, flat, loss_of, mlp

TEXTS = (
    "sign(momentum=0.9)",
    "dgc(ratio=0.1, warmup=2, stage=2)",
    *(f"feedback({name})" for name in ("topk(ratio=0.1)", "gtopk(ratio=0.1)", "randomk(ratio=0.1)", "efsign")),
    *(f"feedback({name})" for name in ("onebit", "qsgd", "terngrad", "natural", "threshold", "powersgd(rank=1)")),
)


def pace_of(comm, model, optimizer, text, schedule="fusion(mb=0.001)"):
    run = Run(workers=comm.size, compress=text, schedule=schedule, optimizer="sgd(lr=0.1)", model="mlp")
    return Pace(model, optimizer, comm=comm, axes=compose(run).axes)


def train(comm, text, data, saved=None):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 if text.startswith("sign") else 0.1)
    pace = pace_of(comm, model, optimizer, text)
    if saved:
        model.load_state_dict(saved[0])
        pace.load_state_dict(saved[1])
    losses = []
    for x, y in data:
        share = slice(comm.rank * 12, comm.rank * 12 + 12)
        loss = loss_of(model, x[share], y[share] % 2)
        loss.backward()
        pace.step()
        losses.append(loss.item())
    return copy.deepcopy((model.state_dict(), pace.state_dict(), losses, flat(model)))


@pytest.mark.parametrize("text", TEXTS)
def test_a_run_that_is_saved_and_resumed_equals_one_that_is_not(text):
    data = list(batches(steps=6))

    def work(comm):
        whole = train(comm, text, data)
        halves = train(comm, text, data[3:], train(comm, text, data[:3]))
        return whole[3], halves[3]

    found = run_ranks(2, work)
    for whole, halves in found:
        assert torch.equal(whole, found[0][0]), "replicas differ"
        assert torch.equal(whole, halves)


@pytest.mark.parametrize("text", TEXTS)
def test_the_loss_falls(text):
    for _, _, losses, _ in run_ranks(2, lambda comm: train(comm, text, list(batches(steps=30)))):
        assert sum(losses[-5:]) < sum(losses[:5])


def test_a_residual_moves_with_its_tensor_when_the_arena_is_laid_out_anew():
    class Late(torch.nn.Module):
        """Registered in the order in which gradients become ready, so that the arena must turn around."""

        def __init__(self):
            super().__init__()
            self.last, self.first = torch.nn.Linear(6, 3), torch.nn.Linear(6, 6)

        def forward(self, x):
            return self.last(self.first(x))

    def work(comm):
        model = Late()
        pace = pace_of(comm, model, torch.optim.SGD(model.parameters(), lr=0.1), "feedback(topk(ratio=0.1))", "bsp")
        arena = pace.engines[0].arenas[0]
        before = [slot.name for slot in arena.layout.slots]
        model(torch.ones(2, 6)).square().sum().backward()
        owed = {}
        original = arena.reorder

        def reorder(order):
            owed.update(arena.codec.state()["memory"])
            original(order)

        arena.reorder = reorder
        pace.step()
        after = [slot.name for slot in arena.layout.slots]
        return before, after, owed, arena.codec.state()["memory"]

    before, after, owed, kept = run_ranks(1, work)[0]
    assert before != after
    assert any(float(value.abs().max()) > 0 for value in owed.values())
    assert all(torch.equal(owed[name], kept[name]) for name in owed)


def test_a_nan_gradient_is_named_and_nothing_is_packed():
    def work(comm):
        model = mlp()
        pace = pace_of(comm, model, torch.optim.SGD(model.parameters(), lr=0.1), "feedback(topk)", "bsp")
        handle = model[2].weight.register_hook(lambda gradient: gradient * float("nan"))
        model(torch.ones(2, 8)).sum().backward()
        handle.remove()
        pace.step()

    with pytest.raises(NonFinite, match=r"rank 0: the gradient of 2.weight is not finite: 128 of 128 numbers"):
        run_ranks(1, work)


def test_unused_parameters_keep_no_gradient_under_a_compressor():
    class Idle(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)

        def forward(self, x):
            return self.used(x)

    def work(comm):
        model = Idle()
        pace = pace_of(comm, model, torch.optim.SGD(model.parameters(), lr=0.1), "sign", "bsp")
        kept = model.idle.weight.detach().clone()
        model(torch.ones(2, 4)).sum().backward()
        pace.step()
        return torch.equal(kept, model.idle.weight)

    assert all(run_ranks(2, work)), "sign(0) is +1, but nobody had a gradient"


@pytest.mark.parametrize("schedule", ["bsp", "wfbp"])
def test_what_was_owed_is_not_lost_where_nobody_has_a_gradient(schedule):
    """All that was applied and what is still owed are all gradients, also of a tensor that is used now and then."""
    ratio, rate = 0.25, 1.0

    def work(comm):
        model = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.zeros(4)) for name in "ab"})
        update = torch.optim.SGD(model.parameters(), lr=rate)
        pace = pace_of(comm, model, update, f"feedback(topk(ratio={ratio}))", schedule)
        given = {name: torch.zeros(4) for name in "ab"}
        for step in range(9):
            used = "ab" if step % 3 == 0 else "a"
            for name in used:
                gradient = torch.arange(1.0, 5.0) * (10 if name == "a" and step % 3 == 0 else 0.01)
                given[name] += gradient
                (model[name] * gradient).sum().backward()
            pace.step()
        pace.finish()
        owed = pace.engines[0].arenas[0].codec.state()["memory"]
        applied = {name: -model[name].detach() / rate for name in "ab"}
        lost = [(applied[n] + comm.size * owed[n].view(4) - given[n]).abs().max().item() for n in "ab"]
        return bool(applied["b"].any()), lost

    for moved, lost in run_ranks(2, work):
        assert moved, "nothing of b was ever sent: this shows nothing"
        assert max(lost) < 1e-4


@pytest.mark.parametrize("text", TEXTS)
def test_a_checkpoint_of_a_run_without_a_compressor_can_be_loaded(text):
    data = list(batches(steps=4))

    def work(comm):
        dense = train(comm, "none", data[:2])
        return train(comm, text, data[2:], dense)[3]

    first, second = run_ranks(2, work)
    assert torch.equal(first, second), "replicas differ"


@pytest.mark.parametrize("text", ["qsgd", "sign(momentum=0.9)", "powersgd(rank=2)"])
def test_a_compressor_that_owes_nothing_may_be_left_out(text):
    data = list(batches(steps=2))
    assert run_ranks(1, lambda comm: train(comm, "none", data, train(comm, text, data)))


def test_what_a_compressor_owed_is_not_dropped_without_a_word():
    data = list(batches(steps=2))
    with pytest.raises(WrongCommand, match=r"the saved state of compressor feedback\(topk\): this run has none"):
        run_ranks(1, lambda comm: train(comm, "none", data, train(comm, "feedback(topk)", data)))


@pytest.mark.parametrize("column_major", [False, True])
def test_powersgd_takes_rows_and_columns_as_they_lie_in_memory(column_major):
    left, right = torch.linspace(-1, 1, 20), torch.linspace(2, 1, 16)

    def work(comm):
        model = torch.nn.Linear(16, 20, bias=False)
        model.weight = torch.nn.Parameter(torch.zeros(16, 20).t() if column_major else torch.zeros(20, 16))
        pace = pace_of(comm, model, torch.optim.SGD(model.parameters(), lr=1.0), "powersgd(rank=1)", "bsp")
        (left @ model(right)).backward()
        pace.step()
        return model.weight.detach().clone()

    found = run_ranks(1, work)[0]
    assert torch.allclose(found, -torch.outer(left, right), atol=1e-4)
