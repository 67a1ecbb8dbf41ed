"""The contract of torch's DDP: p.grad is the mean when backward returns, and optimizer.step() is a step."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from paceline.api import join as joining
from paceline.api.wrap import wrap
from paceline.comm.thread import run_ranks
from paceline.engine.device import CpuDevice
from paceline.errors import WorkloadError, WrongCommand
from paceline.train.serve import serve
from tests.train.problems import batches, build, flat, loss_of, mlp

SIZE = 2


def on_ranks(work, size=SIZE, servers=0):
    def joined(comm):
        worker = joining.Worker(comm, CpuDevice())
        joining._current.set(worker)
        try:
            return work(worker)
        finally:
            joining._current.set(None)

    return run_ranks(size, joined, servers=servers, serve=serve)[:size]


def share_of(worker, *tensors):
    return [tensor[worker.rank :: worker.size] for tensor in tensors]


def sgd(model, **settings):
    return torch.optim.SGD(model.parameters(), lr=0.1, **settings)


def gradients(model):
    return torch.cat([p.grad.detach().reshape(-1).double() for p in model.parameters()]).clone()


def expected_gradients(x, y):
    model = mlp(torch.float64)
    loss_of(model, x, y).backward()
    return gradients(model)


def data(steps=1):
    return list(batches(torch.float64, steps=steps))


@pytest.mark.parametrize("schedule", ["bsp", "wfbp", "fusion"])
@pytest.mark.parametrize("compressor", ["none", "feedback(topk(ratio=1.0))"])
def test_after_backward_p_grad_is_the_mean(schedule, compressor):
    def work(worker):
        model = mlp(torch.float64)
        wrap(model, sgd(model), schedule=schedule, compressor=compressor)
        seen = []
        for x, y in data(3):
            model.zero_grad()
            loss_of(model, *share_of(worker, x, y)).backward()
            seen.append(gradients(model))
        return seen

    digits = 1e-12 if compressor == "none" else 1e-6  # payloads are float32
    for seen in on_ranks(work):
        for found, (x, y) in zip(seen, data(3), strict=True):
            assert (found - expected_gradients(x, y)).abs().max() < digits


def test_backwards_add_up_and_zero_grad_discards():
    (x, y), (u, v) = data(2)

    def work(worker):
        model = mlp(torch.float64)
        optimizer = sgd(model)
        wrap(model, optimizer)
        seen = []
        for again in range(3):
            loss_of(model, *share_of(worker, x, y)).backward()
            loss_of(model, *share_of(worker, u, v)).backward()
            seen.append(gradients(model))
            optimizer.zero_grad(set_to_none=again % 2 == 0)
            loss_of(model, *share_of(worker, u, v)).backward()
            seen.append(gradients(model))
            model.zero_grad()
        optimizer.step()
        return seen, flat(model)

    first, second = expected_gradients(x, y), expected_gradients(u, v)
    for seen, weights in on_ranks(work):
        for k, found in enumerate(seen):
            assert (found - (second if k % 2 else first + second)).abs().max() < 1e-12
        assert torch.equal(weights, flat(mlp(torch.float64))), "a step without gradients changes nothing"


@pytest.mark.parametrize("loss_scale", [False, True])
def test_backwards_add_up_under_a_loss_scale(loss_scale):
    (x, y), (u, v) = data(2)

    def work(worker):
        model = mlp(torch.float64)
        pace = wrap(model, sgd(model), loss_scale=loss_scale)
        for a, b in ((x, y), (u, v), (x, y)):
            pace.scaled(loss_of(model, *share_of(worker, a, b))).backward()
        return gradients(model)

    expected = 2 * expected_gradients(x, y) + expected_gradients(u, v)
    for found in on_ranks(work):
        assert (found - expected).abs().max() < 1e-12


def test_gradients_that_a_step_leaves_are_added_to_as_torch_does():
    def train(model, optimizer, share):
        for x, y in data(4):
            loss_of(model, *share(x, y)).backward()
            optimizer.step()  # nobody calls zero_grad
        return flat(model)

    def work(worker):
        model = mlp(torch.float64)
        optimizer = sgd(model)
        wrap(model, optimizer)
        return train(model, optimizer, lambda *batch: share_of(worker, *batch))

    model = mlp(torch.float64)
    expected = train(model, sgd(model), lambda *batch: batch)
    for weights in on_ranks(work):
        assert (weights - expected).abs().max() < 1e-12


WRITES = {
    "mul_": lambda gradient: gradient.mul_(1e6),
    "data": lambda gradient: gradient.data.fill_(1e6),
    "numpy": lambda gradient: gradient.numpy().fill(1e6),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_stays_on_its_rank_and_in_its_step(write):
    def work(worker):
        model = mlp(torch.float64)
        wrap(model, sgd(model))
        seen = []
        for x, y in data(4):
            loss_of(model, *share_of(worker, x, y)).backward()
            seen.append(gradients(model))
            worker.comm.barrier()
            if worker.rank == 0:
                for parameter in model.parameters():
                    WRITES[write](parameter.grad)
            worker.comm.barrier()
            if worker.rank == 1:
                seen.append(gradients(model))
            model.zero_grad()
        return seen

    one, two = on_ranks(work)
    expected = [expected_gradients(x, y) for x, y in data(4)]
    for found, mean in zip(one, expected, strict=True):
        assert (found - mean).abs().max() < 1e-12
    for found, mean in zip(two, [mean for mean in expected for _ in range(2)], strict=True):
        assert (found - mean).abs().max() < 1e-12


@pytest.mark.parametrize("write", WRITES)
def test_a_rank_alone_gets_results_without_a_copy_and_its_writes_do_not_survive(write):
    def work(worker):
        model = mlp(torch.float64)
        pace = wrap(model, sgd(model))
        seen = []
        for x, y in data(3):
            loss_of(model, x, y).backward()
            seen.append(gradients(model))
            for parameter in model.parameters():
                WRITES[write](parameter.grad)
            model.zero_grad()
        first, result = next(model.parameters()), pace.engines[0].arenas[0].result
        loss_of(model, x, y).backward()
        return seen, result.data_ptr() <= first.grad.data_ptr() < result.data_ptr() + result.nbytes

    [(seen, in_place)] = on_ranks(work, size=1)
    assert in_place
    for found, (x, y) in zip(seen, data(3), strict=True):
        assert (found - expected_gradients(x, y)).abs().max() < 1e-12


class Whole(nn.Module):
    """Every layer is inside a reentrant checkpoint: no gradient is made by the outermost backward itself."""

    def __init__(self, reentrant=True):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        self.reentrant = reentrant

    def forward(self, x):
        x = x.requires_grad_() * 1.0
        inner = lambda x: checkpoint(self.layers[0], x, use_reentrant=True).tanh()  # noqa: E731
        x = checkpoint(inner, x, use_reentrant=True) if self.reentrant else self.layers[0](x).tanh()
        return checkpoint(self.layers[2], x, use_reentrant=True) if self.reentrant else self.layers[2](x)


@pytest.mark.parametrize("schedule", ["wfbp", "fusion"])
def test_only_the_outermost_backward_ends_the_exchange(schedule):
    whole = build(lambda: Whole().double())
    plain = Whole(reentrant=False).double()
    plain.load_state_dict(whole.state_dict())
    x, y = data()[0]
    loss_of(plain, x.clone(), y).backward()

    def work(worker):
        model = copy.deepcopy(whole)
        pace = wrap(model, sgd(model), schedule=schedule)
        ends = []
        end = pace.duty.end
        pace.duty.end = lambda: (ends.append(len(pace.engines[0].arrived)), end())
        for _ in range(3):
            model.zero_grad()
            part, labels = share_of(worker, x.clone(), y)
            loss_of(model, part, labels).backward()
        return gradients(model), ends

    for found, ends in on_ranks(work):
        assert (found - gradients(plain)).abs().max() < 1e-12
        assert ends == [4, 4, 4]


def test_an_error_in_the_exchange_comes_out_of_backward():
    def work(worker):
        model = mlp()
        pace = wrap(model, sgd(model))

        def fail():
            raise WrongCommand("this exchange")

        pace.duty.end = fail
        with pytest.raises(WrongCommand, match="this exchange"):
            loss_of(model, *next(batches())).backward()

    on_ranks(work, size=1)


def test_a_backward_after_a_failed_one_is_refused():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            raise ValueError("half way")

    def work(worker):
        first, last = nn.Linear(8, 8), nn.Linear(8, 1)
        model = nn.Sequential(first, last)
        wrap(model, sgd(model))
        with pytest.raises(ValueError, match="half way"):
            last(Fails.apply(first(torch.ones(1, 8)))).sum().backward()
        with pytest.raises(WorkloadError, match="after one that failed"):
            model(torch.ones(1, 8)).sum().backward()

    on_ranks(work, size=1)


# no_sync and accumulate -----------------------------------------------------------------------------


def micro_batches(x, y, count=3):
    size = len(x) // count
    return [(x[k * size : (k + 1) * size], y[k * size : (k + 1) * size]) for k in range(count)]


@pytest.mark.parametrize("settings", [{}, {"loss_scale": True}], ids=str)
def test_no_sync_sums_and_the_next_backward_exchanges_the_sum(settings):
    def work(worker):
        model = mlp(torch.float64)
        optimizer = sgd(model)
        pace = wrap(model, optimizer, **settings)
        for x, y in data(4):
            parts = micro_batches(x, y)
            for k, part in enumerate(parts):
                with pace.no_sync() if k + 1 < len(parts) else contextlib.nullcontext():
                    pace.scaled(loss_of(model, *share_of(worker, *part))).backward()
            optimizer.step()
            optimizer.zero_grad()
        return flat(model)

    model = mlp(torch.float64)
    optimizer = sgd(model)
    for x, y in data(4):
        for part in micro_batches(x, y):
            loss_of(model, *part).backward()
        optimizer.step()
        optimizer.zero_grad()
    for weights in on_ranks(work):
        assert (weights - flat(model)).abs().max() < 1e-12


def test_a_step_after_no_sync_alone_exchanges_what_was_held():
    x, y = data()[0]

    def work(worker):
        model = mlp(torch.float64)
        optimizer = sgd(model)
        pace = wrap(model, optimizer)
        with pace.no_sync():
            loss_of(model, *share_of(worker, x, y)).backward()
        optimizer.step()
        return flat(model)

    one, two = on_ranks(work)
    assert torch.equal(one, two)


@pytest.mark.parametrize("models", [1, 2])
def test_after_a_step_that_was_left_out_a_rank_without_gradients_takes_part(models):
    """A loop that skips a step, as GradScaler does at an overflow; then rank 1 has nothing to learn from."""
    (x, y), (u, v), (s, t) = data(3)

    def work(worker):
        model = mlp(torch.float64)
        optimizer = sgd(model)
        wrap(model, optimizer)
        for _ in range(1, models):
            wrap(extra := mlp(torch.float64, seed=1), sgd(extra))
        loss_of(model, *share_of(worker, x, y)).backward()
        optimizer.zero_grad()  # and no step
        if worker.rank == 0:
            loss_of(model, u, v).backward()
        optimizer.step()
        optimizer.zero_grad()
        loss_of(model, *share_of(worker, s, t)).backward()
        optimizer.step()
        return flat(model)

    model = mlp(torch.float64)
    optimizer = sgd(model)
    (loss_of(model, u, v) / SIZE).backward()
    optimizer.step()
    optimizer.zero_grad()
    loss_of(model, s, t).backward()
    optimizer.step()
    for weights in on_ranks(work):
        assert (weights - flat(model)).abs().max() < 1e-12


def test_accumulating_leaves_adam_and_parameters_as_they_are():
    def work(worker):
        model = mlp(torch.float64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        pace = wrap(model, optimizer, accumulate=2)
        changes = []
        for x, y in data(4):
            before, state = flat(model), copy.deepcopy(optimizer.state_dict()["state"])
            loss_of(model, *share_of(worker, x, y)).backward()
            optimizer.step()
            same = str(state) == str(optimizer.state_dict()["state"])
            changes.append((torch.equal(before, flat(model)), same))
            if pace.steps and len(changes) % 2 == 0:
                optimizer.zero_grad()
        return changes, pace.steps

    for changes, steps in on_ranks(work):
        assert changes == [(True, True), (False, False)] * 2
        assert steps == 2


def test_an_overflow_leaves_adam_and_parameters_as_they_are():
    def work(worker):
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        pace = wrap(model, optimizer, loss_scale=True)
        x, y = next(batches(steps=1))
        pace.scaled(loss_of(model, x, y)).backward()
        optimizer.step()
        optimizer.zero_grad()
        before, state = flat(model), str(optimizer.state_dict()["state"])
        loss = pace.scaled(loss_of(model, x, y))
        (loss * (float("inf") if worker.rank else 1.0)).backward()
        optimizer.step()
        return torch.equal(before, flat(model)), state == str(optimizer.state_dict()["state"]), pace.steps

    assert on_ranks(work) == [(True, True, 1)] * 2


# optimizers and what calls them ---------------------------------------------------------------------


def test_schedulers_made_before_and_after_wrap_follow_the_steps(recwarn):
    def work(worker):
        model = mlp(torch.float64)
        optimizer = sgd(model)
        early = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        pace = wrap(model, optimizer)
        late = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        for k, (x, y) in enumerate(data(4)):
            loss_of(model, *share_of(worker, x, y)).backward()
            (optimizer if k % 2 else pace).step()
            optimizer.zero_grad()
            early.step()
            late.step()
        return pace.steps, optimizer.param_groups[0]["lr"]

    assert on_ranks(work) == [(4, pytest.approx(0.1 / 16))] * 2
    assert not [warning for warning in recwarn if "lr_scheduler" in str(warning.message)]


def test_a_closed_pace_gives_the_optimizer_back():
    def work(worker):
        model = mlp()
        optimizer = sgd(model)
        pace = wrap(model, optimizer)
        pace.close()
        loss_of(model, *next(batches())).backward()
        optimizer.step()
        return pace.steps, "step" in vars(optimizer) and optimizer.step.__func__ is not torch.optim.SGD.step

    assert on_ranks(work, size=1) == [(0, False)]


@pytest.mark.parametrize("name", ["SGD", "LBFGS"])
def test_optimizer_step_with_a_closure_averages_gradients_and_the_loss(name):
    def train(model, optimizer, share):
        losses = []
        for x, y in data(3):

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = loss_of(model, *share(x, y))
                loss.backward()
                return loss

            losses.append(float(optimizer.step(closure).detach()))
        return flat(model), losses

    def made(model):
        return getattr(torch.optim, name)(model.parameters(), lr=0.1)

    def work(worker):
        model = mlp(torch.float64)
        optimizer = made(model)
        wrap(model, optimizer)
        return train(model, optimizer, lambda *batch: share_of(worker, *batch))

    model = mlp(torch.float64)
    expected, losses = train(model, made(model), lambda *batch: batch)
    for weights, found in on_ranks(work):
        assert (weights - expected).abs().max() < 1e-9  # LBFGS divides by small differences
        assert found == pytest.approx(losses, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clip_norm_equals_clip_grad_norm_in_the_models_precision(dtype):
    def train(step_of, clips):
        def work(worker):
            model = mlp(dtype)
            optimizer = sgd(model, momentum=0.9)
            pace = wrap(model, optimizer, **clips)
            for x, y in batches(dtype, steps=20):
                loss_of(model, *share_of(worker, x, y)).backward()
                step_of(model, optimizer, pace)
            return flat(model)

        return on_ranks(work)

    def torchs(model, optimizer, pace):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()

    ours = train(lambda model, optimizer, pace: pace.step(), {"clip_norm": 0.05})
    for a, b in zip(ours, train(torchs, {}), strict=True):
        assert (a - b).abs().max() < (1e-14 if dtype == torch.float64 else 1e-6)


def test_two_models_whose_losses_reach_each_other():
    """As a generator and a discriminator do: two backwards of one, then one through both."""

    def train(wrap, share):
        d, g = mlp(torch.float64), mlp(torch.float64, seed=1)
        steps = [sgd(d), sgd(g)]
        wrap(d, steps[0])
        wrap(g, steps[1])
        narrow = torch.eye(4, 8, dtype=torch.float64)
        for x, y in data(4):
            x, y = share(x, y)
            d.zero_grad()
            loss_of(d, x, y).backward()
            fake = g(x) @ narrow
            loss_of(d, fake.detach(), y).backward()
            steps[0].step()
            g.zero_grad()
            loss_of(d, fake, (y + 1) % 4).backward()
            steps[1].step()
        return torch.cat([flat(d), flat(g)])

    def work(worker):
        return train(wrap, lambda *batch: share_of(worker, *batch))

    expected = train(lambda *_: None, lambda *batch: batch)
    for weights in on_ranks(work):
        assert (weights - expected).abs().max() < 1e-12


# where the contract is another ----------------------------------------------------------------------


def test_with_rules_that_average_parameters_p_grad_is_this_ranks_own():
    x, y = data()[0]

    def work(worker):
        model = mlp(torch.float64)
        optimizer = sgd(model)
        wrap(model, optimizer, rule="atc", exchange="allreduce")
        loss_of(model, *share_of(worker, x, y)).backward()
        own = gradients(model)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        return own, norm, flat(model)

    for rank, (own, norm, weights) in enumerate(on_ranks(work)):
        assert (own - expected_gradients(x[rank::2], y[rank::2])).abs().max() < 1e-12
        assert norm == pytest.approx(float(own.norm()))
        assert (weights - flat(mlp(torch.float64))).norm() <= 0.1 * 0.01 + 1e-12


REFUSING = [({"schedule": "dear"}, 0), ({"schedule": "priority"}, 0), ({"rule": "server"}, 1)]
OPERATIONS = {
    "norm": lambda model: model[0].weight.grad.norm(),
    "clip_grad_norm_": lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "clip_grad_value_": lambda model: torch.nn.utils.clip_grad_value_(model.parameters(), 1.0),
    "data": lambda model: model[0].weight.grad.data.mul_(2),
    "numpy": lambda model: model[0].weight.grad.numpy(),
    "item": lambda model: model[0].bias.grad[0].item(),
    "zero": lambda model: model.zero_grad(set_to_none=False),
}


@pytest.mark.parametrize(("axes", "servers"), REFUSING, ids=str)
def test_where_there_is_no_mean_gradient_every_use_of_it_is_refused(axes, servers):
    def work(worker):
        model = mlp(torch.float64)
        optimizer = sgd(model)
        exchange = {"exchange": "ps(servers=1, colocated=false)"} if servers else {}
        pace = wrap(model, optimizer, **axes, **exchange)
        refused = []
        for x, y in data(6):
            loss_of(model, *share_of(worker, x, y)).backward()
            assert model[0].weight.grad.shape == model[0].weight.shape
            for name, use in OPERATIONS.items():
                with pytest.raises(WorkloadError, match=r"(on p.grad|the servers).*try: pace.step\(\)"):
                    use(model)
                refused.append(name)
            with pytest.raises(WorkloadError, match=r"optimizer.step\(\) with"):
                optimizer.step()
            assert pace.step()
            assert model[0].weight.grad is None
        pace.finish()
        return len(refused), flat(model)

    expected = mlp(torch.float64)
    optimizer = sgd(expected)
    for x, y in data(6):
        optimizer.zero_grad()
        loss_of(expected, x, y).backward()
        optimizer.step()
    for count, weights in on_ranks(work, servers=servers):
        assert count == 6 * len(OPERATIONS)
        assert (weights - flat(expected)).abs().max() < 1e-12


def test_synchronize_shows_the_mean_where_backward_does_not():
    def work(worker):
        model = mlp(torch.float64)
        pace = wrap(model, sgd(model), schedule="dear")
        for x, y in data(6):
            loss_of(model, *share_of(worker, x, y)).backward()
            pace.synchronize()
            found = gradients(model)
            pace.step()
        return found, flat(model)

    one, two = on_ranks(work)
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])


def scaled_loop(model, worker, stepper, overflow_at=2):
    """Train with GradScaler while one rank overflows once; return the weights after every step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    seen = []
    for k, (x, y) in enumerate(data(5)):
        loss = loss_of(model, *share_of(worker, x, y))
        if k == overflow_at and worker.rank == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(stepper)
        scaler.update()
        model.zero_grad()
        seen.append(flat(model))
    return seen


@pytest.mark.parametrize("axes", [{}, {"rule": "atc"}, {"rule": "awc", "exchange": "neighbor(ring)"}], ids=str)
@pytest.mark.parametrize("whose", ["optimizer", "pace"])
def test_with_gradscaler_all_ranks_skip_together(axes, whose):
    def work(worker):
        model = mlp(torch.float64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
        pace = wrap(model, optimizer, **axes)
        return scaled_loop(model, worker, pace if whose == "pace" else optimizer)

    for seen in on_ranks(work):
        assert torch.equal(seen[1], seen[2]), "the step of the overflow changed something"
        assert not torch.equal(seen[2], seen[3])
        assert torch.isfinite(seen[-1]).all()


def test_gradscaler_equals_training_without_it():
    def train(scaled):
        def work(worker):
            model = mlp(torch.float64)
            optimizer = sgd(model)
            wrap(model, optimizer, rule="atc", exchange="allreduce")
            if scaled:
                return scaled_loop(model, worker, optimizer, overflow_at=-1)[-1]
            for x, y in data(5):
                loss_of(model, *share_of(worker, x, y)).backward()
                optimizer.step()
                model.zero_grad()
            return flat(model)

        return on_ranks(work)

    for found, expected in zip(train(True), train(False), strict=True):
        assert (found - expected).abs().max() < 1e-12


def test_gradscaler_is_refused_where_ranks_do_not_wait_for_each_other():
    def work(worker):
        model = mlp(torch.float64)
        optimizer = sgd(model)
        wrap(model, optimizer, rule="atc", exchange="window(ring)")
        with pytest.raises(WrongCommand, match="GradScaler with an exchange"):
            scaled_loop(model, worker, optimizer, overflow_at=-1)

    on_ranks(work)


def test_a_closure_works_with_rules_that_average_parameters():
    def work(worker):
        model = mlp(torch.float64)
        optimizer = sgd(model)
        pace = wrap(model, optimizer, rule="atc", exchange="allreduce")
        for x, y in data(3):

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = loss_of(model, *share_of(worker, x, y))
                loss.backward()
                return loss

            optimizer.step(closure)
        return pace.steps, flat(model)

    one, two = on_ranks(work)
    assert one[0] == 3
    assert torch.equal(one[1], two[1])
