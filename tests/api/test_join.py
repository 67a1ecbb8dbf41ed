"""wrap checks what the launcher could not know: the real optimizer, the real model and the device."""

import pytest
import torch
from torch import nn

from paceline.api import join as joining
from paceline.api.ddp_hook import Buckets, comm_hook
from paceline.api.wrap import wrap
from paceline.comm.thread import ThreadComm, ThreadGroup, run_ranks
from paceline.engine.device import CpuDevice
from paceline.errors import NonFinite, Refused, WrongCommand
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy import compressors


class FakeGpu(CpuDevice):
    kind = "cuda"


def wrapped(model=None, device=None, momentum=0.0, nodes=(0,), **choices):
    """Return rank 0's pace after wrap and a step, with ranks on these nodes."""

    def work(comm):
        comm.placement = nodes
        joining._current.set(joining.Worker(comm, device or CpuDevice()))
        own = model or nn.Linear(8, 4)
        assert model is None or len(nodes) == 1, "ranks do not share a model"
        pace = wrap(own, torch.optim.SGD(own.parameters(), lr=0.1, momentum=momentum), **choices)
        own(torch.ones(2, 8)).sum().backward()
        pace.step()
        joining._current.set(None)
        return pace

    return run_ranks(len(nodes), work)[0]


def test_wrap_composes_for_the_hosts_that_ranks_are_on(monkeypatch):
    seen = []

    def composing(*arguments, **settings):
        seen.append(compose(*arguments, **settings))
        return seen[-1]

    monkeypatch.setattr("paceline.api.wrap.compose", composing)
    for strategy in ("neighbor_allreduce", "hierarchical_neighbor_allreduce", "hierarchical_allreduce", "allreduce"):
        planned = compose(Run(workers=4, nodes="2x2", strategy=strategy))
        found = wrapped(nodes=(0, 0, 2, 2), strategy=strategy).axes  # hosts need not be numbered without gaps
        assert str(found.exchange) == str(planned.axes.exchange), strategy
        assert {one.notes for one in seen[-4:]} == {planned.notes}, strategy
    assert str(wrapped(nodes=(0, 0, 1, 1), strategy="neighbor_allreduce").axes.exchange).startswith(
        "neighbor(inner_outer"
    )
    assert "one_peer" in str(wrapped(nodes=(0, 0), strategy="neighbor_allreduce").axes.exchange)


@pytest.mark.parametrize("exchange", ["hierarchical", "hierarchical(neighbor(ring))", "neighbor(inner_outer)"])
@pytest.mark.parametrize("nodes", [(0, 0, 1), (0, 0, 0, 1)])
def test_wrap_refuses_levels_on_uneven_hosts(exchange, nodes):
    rule = "grad" if exchange == "hierarchical" else "atc"
    with pytest.raises(Refused, match=r"the same number|2 nodes"):
        wrapped(nodes=nodes, rule=rule, exchange=exchange)


def test_dgc_is_judged_by_the_optimizer_that_is_wrapped():
    assert wrapped(strategy="dgc").steps == 1
    with pytest.raises(Refused, match=r"compressor dgc with optimizer sgd\(momentum=0.9\): both would apply momentum"):
        wrapped(strategy="dgc", momentum=0.9)


def test_powersgd_is_judged_by_the_model_that_is_wrapped():
    large = nn.Sequential(nn.Linear(8, 1100), nn.Linear(1100, 1100))
    assert wrapped(large, compress="powersgd(rank=1050)").steps == 1, "resnet50 has no such matrix"
    with pytest.raises(WrongCommand, match="no matrix of the model has more than 4 rows and columns"):
        wrapped(compress="feedback(powersgd(rank=5))")


def test_a_lossy_compressor_is_refused_where_the_worker_has_a_gpu():
    with pytest.raises(Refused, match="compressor topk on GPUs"):
        wrapped(device=FakeGpu(), compress="topk")
    assert wrapped(device=FakeGpu(), compress="cast").steps == 1


def test_infinity_is_reported_by_cast_save_beside_a_loss_scale():
    def step(**choices):
        model = nn.Linear(8, 4)
        model.weight.register_hook(lambda gradient: gradient * float("inf"))
        return wrapped(model, compress="cast(fp16)", **choices)

    with pytest.raises(NonFinite, match="rank 0: what it sends of weight is not finite: 32 of 32 numbers"):
        step()
    skipping = step(loss_scale=True)
    assert (skipping.steps, skipping.loss_scale.skipped) == (0, 1)


def test_closures_see_clipped_gradients_and_backward_leaves_them():
    def work(comm):
        joining._current.set(joining.Worker(comm, CpuDevice()))
        model, seen = nn.Linear(8, 4), []
        pace = wrap(model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2), clip_norm=0.5)

        def closure():
            loss = model(torch.full((1, 8), 10.0)).sum()
            loss.backward()
            return loss

        pace.optimizer.step = lambda evaluate: (evaluate(), seen.append(norm(model)))
        pace.step(closure)
        closure()
        pace.synchronize()
        joining._current.set(None)
        return [*seen, norm(model)]

    def norm(model):
        return float(torch.cat([p.grad.reshape(-1) for p in model.parameters()]).norm())

    closure, backward = run_ranks(1, work)[0]
    assert closure == pytest.approx(0.5, rel=1e-4)
    assert backward > 1, "step() clips, backward does not"


def test_every_evaluation_of_a_closure_has_its_own_gradient():
    def work(comm):
        joining._current.set(joining.Worker(comm, CpuDevice()))
        model, seen = nn.Linear(1, 1, bias=False), []
        nn.init.constant_(model.weight, 1.0)
        pace = wrap(model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3))

        def closure():
            loss = model.weight.square().sum()
            loss.backward()
            return loss

        def search(evaluate):
            for value in (1.0, 0.5, 0.25):
                nn.init.constant_(model.weight, value)
                evaluate()
                seen.append(model.weight.grad.item())

        pace.optimizer.step = search
        for _ in range(2):
            pace.step(closure)
            seen.append(model.weight.grad)
        joining._current.set(None)
        return seen

    for seen in run_ranks(2, work):
        assert seen == [2.0, 1.0, 0.5, None] * 2


def test_a_skipped_step_leaves_nothing_to_the_next_one_after_synchronize():
    def work(comm):
        joining._current.set(joining.Worker(comm, CpuDevice()))
        model = nn.Linear(1, 1, bias=False)
        pace = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_scale=True)
        committed = []
        for factor in (float("inf"), 1.0, 1.0):
            pace.scaled(model.weight.sum() * factor).backward()
            pace.synchronize()
            committed.append(pace.step())
        joining._current.set(None)
        return committed

    assert run_ranks(1, work) == [[False, True, True]]


def test_a_checkpoint_may_be_loaded_after_synchronize():
    def work(comm):
        joining._current.set(joining.Worker(comm, CpuDevice()))
        model = nn.Linear(1, 1, bias=False)
        pace = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        state = pace.state_dict()
        model.weight.sum().backward()
        pace.synchronize()
        pace.load_state_dict(state)
        (3 * model.weight.sum()).backward()
        pace.synchronize()
        joining._current.set(None)
        return model.weight.grad.item()

    assert run_ranks(1, work) == [3.0]


def test_a_bucket_of_ddp_without_a_matrix_of_that_rank_travels_as_it_is():
    def work(comm):
        buckets = Buckets(compressors.MENU.make("feedback(powersgd(rank=2))"), comm, {})
        tall, empty = nn.Parameter(torch.zeros(2048, 1)), nn.Parameter(torch.zeros(0, 5))
        buffer = torch.arange(2048.0) * (comm.rank + 1)
        buckets.exchange(0, [tall, empty], buffer)
        return buffer

    for mean in run_ranks(2, work):
        assert torch.equal(mean, torch.arange(2048.0) * 1.5)


def test_what_buckets_owe_follows_parameters_that_ddp_deals_anew():
    """Sum of gradients = sum of what came back + what is owed, in whatever order the parameters stood."""
    compressor, sizes = compressors.MENU.make("feedback(topk(ratio=0.25))"), {"a": 8, "b": 4}

    def work(comm):
        named = {name: nn.Parameter(torch.zeros(numel)) for name, numel in sizes.items()}
        buckets = Buckets(compressor, comm, {id(parameter): name for name, parameter in named.items()})
        dice, given, got = torch.Generator().manual_seed(comm.rank), torch.zeros(12), torch.zeros(12)
        for order in ("ab", "ba", "ab"):
            gradients = {name: torch.randn(numel, generator=dice) for name, numel in sizes.items()}
            buffer = torch.cat([gradients[name] for name in order])
            buckets.exchange(0, [named[name] for name in order], buffer)
            back = dict(zip(order, buffer.split([sizes[name] for name in order]), strict=True))
            given += torch.cat([gradients["a"], gradients["b"]]) / comm.size
            got += torch.cat([back["a"], back["b"]])
        owed = buckets.state()["memory"]
        return given, got, torch.cat([owed["a"], owed["b"]])

    found = run_ranks(2, work)
    given, owed = (sum(one[k] for one in found) for k in (0, 2))
    assert torch.allclose(given, found[0][1] + owed, atol=1e-5)  # a few float32 additions of numbers near 1


def test_buckets_go_on_from_a_saved_state_and_forget_their_own():
    def work(comm):
        parameter = nn.Parameter(torch.zeros(8))
        saved, used = (Buckets(compressors.MENU.make("feedback(topk(ratio=0.25))"), comm, {}) for _ in range(2))
        for k, buckets in enumerate((saved, used)):
            buckets.exchange(0, [parameter], torch.arange(8.0) * (comm.rank + 1) - 9 * k)
        used.restore(saved.state())
        outs = [torch.ones(8), torch.ones(8)]
        for buckets, out in zip((saved, used), outs, strict=True):
            buckets.exchange(0, [parameter], out)
        return outs

    for straight, restored in run_ranks(2, work):
        assert torch.equal(straight, restored)


def test_infinity_is_reported_by_the_hook_save_beside_a_loss_scale(monkeypatch):
    comm = ThreadComm(0, ThreadGroup(1))
    comm.backend = "gloo"
    monkeypatch.setattr("paceline.api.ddp_hook.around_process_group", lambda: comm)

    def exchanged(**choices):
        buckets, _ = comm_hook("cast(fp16)", **choices)
        buffer = torch.tensor([1.0, float("inf")])
        buckets.exchange(0, [nn.Parameter(torch.zeros(2))], buffer)
        return buffer.tolist()

    with pytest.raises(NonFinite, match="is not finite: 1 of 2 numbers"):
        exchanged()
    assert exchanged(loss_scale=True) == [1.0, float("inf")]


def test_an_epoch_that_a_distributed_sampler_was_told_is_not_overwritten():
    data = torch.utils.data.TensorDataset(torch.arange(20))
    sampler = torch.utils.data.DistributedSampler(data, 1, 0)
    loader = torch.utils.data.DataLoader(data, 5, sampler=sampler)

    def work(comm):
        worker = joining.Worker(comm, CpuDevice())
        seen = []
        for epoch in (5, 6, 9):
            sampler.set_epoch(epoch)
            list(worker.batches(loader))
            seen.append(sampler.epoch)
        for _ in range(2):
            list(worker.batches(loader))
            seen.append(sampler.epoch)
        return seen

    assert run_ranks(1, work) == [[5, 6, 9, 10, 11]]
