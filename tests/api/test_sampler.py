"""paceline.sampler in a user's own DataLoader: exactly once, weighed, and resumable in the middle of an epoch."""

from itertools import chain, islice

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import paceline
from paceline.api import sampler as module
from paceline.api.join import Worker
from paceline.comm.thread import run_ranks
from paceline.engine.device import CpuDevice
from paceline.errors import WrongCommand
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.pace import Pace
from tests.train.problems import flat, loss_of, mlp

DICE = torch.Generator().manual_seed(4)
X, Y = torch.randn(43, 8, generator=DICE, dtype=torch.float64), torch.randint(0, 4, (43,), generator=DICE)
DATA = TensorDataset(X, Y, torch.arange(43))


def made(worker, batch_size, **settings):
    """A sampler of a worker that is a thread."""
    order = module.Permuted(43, batch_size * worker.size, **settings)
    return module.Sampler(worker, order)


def loop(size, *, total=12, accumulate=1, weigh=True, ahead=0, updates=None, state=None):
    """Train two epochs, or go on from a state; return weights, the ids of every batch, and the state at the end."""

    def work(comm):
        worker, model = Worker(comm, CpuDevice()), mlp(torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        pace = Pace(
            model,
            optimizer,
            comm=comm,
            axes=compose(Run(workers=size, accumulate=accumulate)).axes,
            accumulate=accumulate,
        )
        worker.add(pace)
        if not weigh:
            pace.share = None
        sampler = made(worker, total // size // accumulate)
        if state is not None:
            sampler.load_state_dict(state)
        seen = []
        while len(seen) < (updates or 1 << 30) and sampler.state_dict()["epoch"] < 2:
            batches = iter(DataLoader(DATA, batch_sampler=sampler))
            waiting = list(islice(batches, ahead))  # as loader processes do
            for x, y, ids in chain(waiting, batches):
                loss_of(model, x, y).backward()
                pace.step()
                seen.append(ids.tolist())
                if len(seen) == updates:
                    break
        place = sampler.state_dict()
        pace.close()
        return flat(model), seen, place

    return run_ranks(size, work)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("ahead", [0, 3])
def test_ranks_with_unequal_shares_end_where_one_rank_does(size, ahead):
    ((alone, _, _),) = loop(1)
    for weights, _, _ in loop(size, ahead=ahead):
        assert torch.allclose(weights, alone, atol=1e-12)


def test_without_weights_they_do_not():
    ((alone, _, _),) = loop(1)
    for weights, _, _ in loop(3, weigh=False):
        assert not torch.allclose(weights, alone, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_sample_comes_once_per_epoch_in_one_sequence(size):
    ((_, alone, _),) = loop(1)
    ranks = [seen for _, seen, _ in loop(size)]
    for step, whole in enumerate(alone):
        assert [k for seen in ranks for k in seen[step]][: len(whole)] == whole
    assert sorted(k for ids in alone[:4] for k in ids) == list(range(43))
    assert alone[:4] != alone[4:]


def test_a_state_in_mid_epoch_points_at_the_next_batch_to_train_on():
    ((_, whole, end),) = loop(1)
    ((_, first, place),) = loop(1, updates=2, ahead=2)
    assert place == {"epoch": 0, "step": 2, "seed": 0}
    ((_, rest, _),) = loop(1, state=place)
    assert first + rest == whole
    assert end == {"epoch": 2, "step": 0, "seed": 0}


def test_an_epoch_can_be_set_and_another_seed_is_refused():
    def work(comm):
        sampler = made(Worker(comm, CpuDevice()), 5)
        one, two = list(sampler), list(sampler)
        sampler.set_epoch(0)
        assert list(sampler) == one != two
        with pytest.raises(WrongCommand, match=r"seed 3: .* seed 0.*sampler\(\.\.\., seed=3\)"):
            sampler.load_state_dict({"epoch": 0, "step": 0, "seed": 3})
        return len(sampler)

    assert run_ranks(1, work) == [9]


def test_the_public_call_joins_sampler_and_loader():
    with paceline.join():
        sampler = paceline.sampler(DATA, batch_size=10)
        assert sorted(k for _, _, ids in DataLoader(DATA, batch_sampler=sampler) for k in ids.tolist()) == [*range(43)]
        with pytest.raises(WrongCommand, match="only 43 samples"):
            paceline.sampler(DATA, batch_size=44)


def test_a_sampler_in_an_elastic_job_is_refused(monkeypatch):
    with paceline.join() as worker:
        monkeypatch.setattr(type(worker), "elastic", True)
        with pytest.raises(WrongCommand, match=r"elastic job: .*worker.batches\(dataset\)"):
            paceline.sampler(DATA, batch_size=4)
        monkeypatch.undo()
