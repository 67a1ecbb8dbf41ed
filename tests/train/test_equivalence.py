"""Any number of workers equals one process on the concatenated batch."""

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.strategy import schedules
from tests.train.problems import alone, batches, mlp, together

PLAIN = ("bsp", "wfbp", "fusion", "fusion(mb=0.0005)")
# these plan anew after some steps, or cross the step
LEARNING = [name for name in schedules.MENU.names() if name not in PLAIN]
LEARNING += ["mgwfbp(greedy)", "priority(partition=0.0005, credit=0.001)", "dear(mb=0.0005)", "auto(crossing=true)"]


def check_equal(size, schedule, optimizer, dtype, tolerance):
    expected = alone(lambda: mlp(dtype), lambda: batches(dtype), optimizer)
    found = run_ranks(
        size, lambda comm: together(comm, lambda: mlp(dtype), lambda: batches(dtype), optimizer, schedule=schedule)
    )
    for weights in found:
        assert torch.equal(weights, found[0]), "replicas differ"
        assert (weights - expected).abs().max() <= tolerance


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("schedule", PLAIN)
@pytest.mark.parametrize(
    ("optimizer", "dtype", "tolerance"),
    [
        ("momentum", torch.float32, 1e-5),  # sums in another order round differently in float32
        ("sgd", torch.float64, 1e-9),
        ("adamw", torch.float64, 1e-9),
        ("nesterov", torch.float64, 1e-9),  # writes into its gradients, so results must not be shared
    ],
)
def test_workers_equal_one_process(size, schedule, optimizer, dtype, tolerance):
    check_equal(size, schedule, optimizer, dtype, tolerance)


@pytest.mark.parametrize(("size", "optimizer"), [(1, "adamw"), (2, "nesterov"), (3, "adamw"), (4, "momentum")])
@pytest.mark.parametrize("schedule", LEARNING)
def test_workers_equal_one_process_while_the_schedule_learns(size, schedule, optimizer):
    check_equal(size, schedule, optimizer, torch.float64, 1e-9)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_accumulation_of_four_equals_the_big_batch(size):
    expected = alone(lambda: mlp(torch.float64), lambda: batches(torch.float64))
    found = run_ranks(
        size, lambda comm: together(comm, lambda: mlp(torch.float64), lambda: batches(torch.float64), accumulate=4)
    )
    for weights in found:
        assert (weights - expected).abs().max() <= 1e-9


def test_ranks_start_from_rank_zero():
    found = run_ranks(3, lambda comm: together(comm, lambda: mlp(seed=comm.rank), batches))
    assert torch.equal(found[0], found[1])
    assert (found[0] - alone(mlp, batches)).abs().max() <= 1e-5


def test_a_compressed_run_stays_close_and_identical():
    expected = alone(mlp, batches)
    found = run_ranks(2, lambda comm: together(comm, mlp, batches, compress="cast(bf16)"))
    assert torch.equal(found[0], found[1])
    assert 0 < (found[0] - expected).abs().max() < 0.05
