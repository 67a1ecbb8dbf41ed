"""A gradient weighs by its samples: ranks with unequal shares end where one process with all samples ends."""

import contextlib

import pytest
import torch
from torch.utils.data import TensorDataset

from paceline.api.join import Worker
from paceline.comm.thread import run_ranks
from paceline.engine.device import CpuDevice
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.build import training_of
from paceline.train.pace import Pace
from tests.train.problems import flat, loss_of, mlp

DICE = torch.Generator().manual_seed(4)
X, Y = torch.randn(43, 8, generator=DICE, dtype=torch.float64), torch.randint(0, 4, (43,), generator=DICE)


def loop(size, *, total, accumulate=1, weigh=True, samples=43, **axes):
    """Train with worker.batches: the last of the global batches is short."""

    def work(comm):
        worker, model = Worker(comm, CpuDevice()), mlp(torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        run = Run(workers=size, accumulate=accumulate, **axes)
        pace = Pace(model, optimizer, comm=comm, axes=compose(run).axes, accumulate=accumulate)
        worker.add(pace)
        if not weigh:
            pace.share = None
        data = TensorDataset(X[:samples], Y[:samples])
        for x, y in worker.batches(data, batch_size=total // size // accumulate, epochs=2):
            loss_of(model, x, y).backward()
            pace.step()
            with torch.no_grad():
                list(worker.batches(data, batch_size=7))  # an evaluation weighs nothing
        pace.close()
        return flat(model)

    return run_ranks(size, work)


@pytest.mark.parametrize("axes", [{}, {"strategy": "p3"}, {"schedule": "dear"}, {"rule": "atc"}], ids=str)
@pytest.mark.parametrize(("size", "samples"), [(2, 43), (3, 43), (4, 42), (3, 37)])
def test_ranks_with_unequal_shares_end_where_one_rank_does(axes, size, samples):
    (alone,) = loop(1, total=12, samples=samples)
    for weights in loop(size, total=12, samples=samples, **axes):
        assert torch.allclose(weights, alone, atol=1e-12)


def held(size, *, total=8, weigh=True, samples=43, **axes):
    """Train with no_sync: three batches per update; shares of the last one differ, and are empty on some ranks."""

    def work(comm):
        worker, model = Worker(comm, CpuDevice()), mlp(torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        pace = Pace(model, optimizer, comm=comm, axes=compose(Run(workers=size, **axes)).axes)
        worker.add(pace)
        if not weigh:
            pace.share = None
        data = TensorDataset(X[:samples], Y[:samples])
        for k, (x, y) in enumerate(worker.batches(data, batch_size=total // size, epochs=2)):
            with contextlib.nullcontext() if k % 3 == 2 else pace.no_sync():
                loss_of(model, x, y).backward()
            if k % 3 == 2:
                pace.step()
        pace.close()
        return flat(model)

    return run_ranks(size, work)


@pytest.mark.parametrize("axes", [{}, {"schedule": "dear"}, {"rule": "atc"}], ids=str)
@pytest.mark.parametrize(("size", "samples"), [(2, 43), (4, 43), (4, 42), (2, 17)])
def test_every_batch_of_no_sync_counts_by_its_own_samples(axes, size, samples):
    """A short batch is the last of an update, one in the middle, or followed by whole ones of the next epoch."""
    (alone,) = held(1, samples=samples)
    for weights in held(size, samples=samples, **axes):
        assert torch.allclose(weights, alone, atol=1e-12)


def test_without_weights_batches_of_no_sync_count_alike():
    (alone,) = held(1)
    for weights in held(2, weigh=False):
        assert not torch.allclose(weights, alone, atol=1e-6)


def test_without_weights_they_do_not():
    (alone,) = loop(1, total=12)
    for weights in loop(3, total=12, weigh=False):
        assert not torch.allclose(weights, alone, atol=1e-6)


@pytest.mark.parametrize(("size", "accumulate"), [(3, 1), (2, 2), (1, 3), (4, 1)])
@pytest.mark.parametrize("axes", [{}, {"rule": "atc"}, {"strategy": "p3"}], ids=str)
def test_a_run_with_epochs_weighs_the_samples_of_its_last_batch(size, accumulate, axes):
    def trained(size, accumulate, **axes):
        run = Run(
            workers=size,
            accumulate=accumulate,
            model="mlp(hidden=8, image_size=4)",
            source="fake(cpu, samples=40)",
            global_batch=12,
            epochs=1,
            **axes,
        )

        def work(comm):
            training = training_of(compose(run), comm)
            from paceline.measure.meter import Meter

            training.steps(2 * training.feed.order.steps, Meter())
            training.feed.close()
            return flat(training.workload.model)

        return run_ranks(size, work)

    (alone,) = trained(1, 1)
    for weights in trained(size, accumulate, **axes):
        # sums of float32 in another order
        assert torch.allclose(weights, alone, atol=2e-6)
