"""What users of the published decentralized library expect of windows and of wrapped optimizers; see published.py."""

import random

import pytest
import torch

import paceline
from paceline.api.join import current
from tests.api import published
from tests.api.published import FRACTIONS, SIZE, expects, holds, samples, sources_of, targets_of

CHECKS = published.CHECKS  # with those of this file


def settled():
    current().comm.barrier()


# windows ------------------------------------------------------------------------------------------


def opened(rank, dtype=torch.float32, shape=(3, 4), **options):
    """A window that starts as the library's do, with the rank's own value in every buffer."""
    x = torch.full(shape, rank, dtype=dtype)
    return x, paceline.window(x, zero_init=False, **options)


@expects("test_win_create_and_sync_and_free", "test_win_update_with_given_weights")
def a_new_window_holds_the_own_value(rank):
    for dtype, shape in samples(FRACTIONS[:2]):
        _, win = opened(rank, dtype, shape)
        holds(win.update(normalize=False), rank, shape)
        weights = dict.fromkeys(win.sources, 1 / 3)
        holds(win.update(self_weight=1 / 3, src_weights=weights, normalize=False), rank, shape)
        settled()
        win.free()


@expects("test_win_update_with_default_weights")
def the_weights_of_a_star(rank):
    x, win = opened(rank, topology="star")
    win.put(2 * x, dst_weights={})  # the own value alone
    holds(win.update(normalize=False), 0 if rank == 0 else rank / SIZE + 2 * rank * (1 - 1 / SIZE), x.shape)
    settled()
    win.free()


@expects("test_win_update_then_collect")
def collecting_empties_the_buffers(rank):
    x, win = opened(rank)
    for _ in range(2):
        holds(win.collect(), 3 * rank, x.shape)
    settled()
    win.free()


@expects("test_win_put", "test_win_put_with_varied_tensor_elements", "test_get_win_version_with_win_put")
def put(rank):
    x, win = opened(rank)
    varied = torch.arange(12.0).view(3, 4) / 1000
    assert set(win.versions().values()) == {0}
    settled()
    win.put(x + varied)
    settled()
    assert win.versions() == dict.fromkeys(sources_of(rank), 1)
    holds(win.update(normalize=False) - varied, (rank + sum(sources_of(rank))) / 3, x.shape)
    assert set(win.versions().values()) == {0}
    settled()
    win.free()


@expects("test_win_put_with_given_destination")
def put_to_one(rank):
    x, win = opened(rank)
    win.put(x, dst_weights={(rank + 1) % SIZE: 1.23})
    settled()
    holds(win.update(normalize=False), (2 * rank + 1.23 * ((rank - 1) % SIZE)) / 3, x.shape)
    settled()
    win.free()


@expects("test_win_accumulate", "test_win_accumulate_with_varied_tensor_elements")
def accumulate(rank):
    x, win = opened(rank)
    win.accumulate(x, dst_weights=dict.fromkeys(targets_of(rank), 1.0), self_weight=1.0)
    settled()
    holds(win.update(normalize=False), rank + sum(sources_of(rank)) / 3, x.shape)
    settled()
    win.free()


@expects("test_win_accumulate_with_given_destination")
def accumulate_to_one(rank):
    x, win = opened(rank)
    below = (rank - 1) % SIZE
    win.accumulate(x, dst_weights={(rank + 1) % SIZE: 1.23}, self_weight=1.0)
    settled()
    mixed = win.update(self_weight=0.5, src_weights={below: 0.5}, normalize=False)
    holds(mixed, rank + 1.23 * below / 2, x.shape)
    settled()
    win.free()


@expects("test_win_get", "test_win_get_with_varied_tensor_elements", "test_get_win_version_with_win_get")
def get(rank):
    x, win = opened(rank)
    assert set(win.versions().values()) == {0}
    win.get()
    assert win.versions() == dict.fromkeys(sources_of(rank), 1)
    settled()
    holds(win.update(normalize=False), (rank + sum(sources_of(rank))) / 3, x.shape)
    assert set(win.versions().values()) == {0}
    settled()
    win.free()


@expects("test_win_get_with_given_sources")
def get_from_one(rank):
    x, win = opened(rank)
    below = (rank - 1) % SIZE
    win.get({below: 1.23})
    settled()
    mixed = win.update(self_weight=0.5, src_weights={below: 0.5}, normalize=False)
    holds(mixed, (rank + 1.23 * below) / 2, x.shape)
    settled()
    win.free()


@expects("test_win_mutex_full")
def a_mutex_keeps_all_others_out(rank):
    """A rank that takes the mutex after rank 0 sees what rank 0 wrote while it held the mutex."""
    x, win = opened(rank, topology="full")
    if rank == 0:
        with win.mutex([0]):
            settled()
            win.put(x + 7)
    else:
        settled()
        with win.mutex([0]):
            assert win.versions()[0] == 1
    settled()
    win.free()


@expects("test_asscoicated_with_p")
def mass_of_one_sender(rank):
    for sender in range(SIZE):
        x, win = opened(rank, topology="ring")
        settled()
        win.collect()  # the buffers hold mass, too, in the beginning
        settled()
        before, near = win.p, [(sender - 1) % SIZE, (sender + 1) % SIZE]
        if rank == sender:
            win.accumulate(x, self_weight=0.5, dst_weights=dict.fromkeys(near, 0.5))
        settled()
        win.collect()
        expected = 0.5 if rank == sender else 1.5 if rank in near else 1.0
        assert win.p / before == pytest.approx(expected)
        settled()
        win.free()


@expects("test_asscoicated_with_p_random_test")
def mass_goes_with_the_value(rank):
    win, dice = paceline.window(torch.ones(5)), random.Random(rank)
    for _ in range(5):
        shares = [dice.random() for _ in range(3)]
        own, *rest = (share / sum(shares) for share in shares)
        win.accumulate(self_weight=own, dst_weights=dict(zip(win.targets, rest, strict=True)))
        win.collect()
    settled()
    win.collect()
    holds(win.x, win.p, (5,))
    total = paceline.allreduce(torch.tensor([win.p]), average=False)
    holds(total, SIZE, (1,))
    win.free()


# training -----------------------------------------------------------------------------------------


def model_of(seed):
    """A model of nested modules that all ranks can solve, from another start on every rank."""
    layer = torch.nn.Linear(4, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(8.0).view(2, 4) * (seed + 1))
    return torch.nn.Sequential(torch.nn.Sequential(layer))


def trained(before_step=None, steps=20, **axes):
    """Return the largest error after training; `before_step` is called with pace and step before each step."""
    model, goal = model_of(current().rank), torch.linspace(-1, 1, 8, dtype=torch.float64).view(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.75)
    pace = paceline.wrap(model, optimizer, **axes)
    for step in range(steps):
        if before_step is not None:
            before_step(pace, step)
        (model(torch.eye(4, dtype=torch.float64)) - goal.t()).square().sum().div(2).backward()
        pace.step()
    error = (model[0][0].weight.detach() - goal).abs().max().item()
    settled()
    pace.close()
    return error


@expects("test_optimizer", "test_optimizer_for_hierarchical_model")
def optimizers_reach_the_goal(rank):
    for axes in (
        {"strategy": "allreduce"},
        {"rule": "awc", "exchange": "neighbor(exp2)"},
        {"rule": "atc", "exchange": "neighbor(exp2)"},
        {"rule": "atc", "exchange": "hierarchical(neighbor(ring))"},
    ):
        assert trained(**axes) < 1e-8, axes


@expects("test_optimizer_local_aggregation", "test_optimizer_local_aggregation_duplicated")
def optimizers_that_mix_every_few_steps_reach_the_goal(rank):
    assert trained(rule="awc(every=4)", exchange="neighbor(exp2)") < 1e-8
    assert trained(rule="atc(every=4)", exchange="allreduce") < 1e-8
    # What ranks learn during the delay counts half: an error of 28 shrinks to 1/256, then to 0.034 in each four steps.
    assert trained(rule="diloco(every=4, delay=2, mixing=0.5, outer=sgd(lr=1.0))") < 28 / 256 * 0.034**4 * 1.1


@expects("test_dynamic_neighbor_allreduce_optimizer")
def optimizers_with_weights_of_the_step_reach_the_goal(rank):
    def one_peer(pace, step):
        distance = 1 + step % 2
        pace.set_weights(
            self_weight=0.5, src_weights={(rank - distance) % SIZE: 0.5}, dst_weights=[(rank + distance) % SIZE]
        )

    for rule in ("awc", "atc"):
        assert trained(one_peer, rule=rule, exchange="neighbor(exp2)") < 1e-8


@expects("test_dynamic_win_put_optimizer")
def optimizers_over_windows_reach_the_goal(rank):
    """Nobody waits for a window, so a barrier keeps ranks within a step of each other."""
    assert trained(lambda pace, step: settled(), rule="atc", exchange="window(one_peer(exp2))") < 1e-6


@expects("broadcast_parameters", "broadcast_optimizer_state")
def states_are_sent(rank):
    """These two have no test of their own there: every training of its tests starts with them."""
    model = model_of(rank)
    paceline.broadcast_parameters(model.state_dict(), root_rank=2)
    assert torch.equal(model[0][0].weight, model_of(2)[0][0].weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
    if rank == 2:
        model(torch.eye(4, dtype=torch.float64)).sum().backward()
        optimizer.step()
    paceline.broadcast_optimizer_state(optimizer, root_rank=2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.3)
    moments = optimizer.state[model[0][0].weight]["exp_avg"]
    assert torch.allclose(moments, torch.full_like(moments, 0.1))
