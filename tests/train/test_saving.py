"""pace.save and pace.load keep all of a training, and a rank does not take the state of another."""

import pytest
import torch
from torch import nn

from paceline.api.wrap import wrap
from paceline.errors import WrongCommand
from tests.train.problems import batches, build, flat, loss_of
from tests.train.test_contract import on_ranks, share_of

AXES = [
    {},
    {"compressor": "feedback(topk(ratio=0.1))"},
    {"compressor": "feedback(powersgd(rank=2))"},
    {"strategy": "local_sgd"},
    {"rule": "atc", "exchange": "neighbor(ring)"},
    {"schedule": "dear"},
]
NET = build(lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4)).state_dict())


def net():
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))
    model.load_state_dict(NET)
    return model


def train(worker, model, pace, first, last):
    for x, y in list(batches(steps=last))[first:]:
        loss_of(model, *share_of(worker, x, y)).backward()
        pace.step()
    pace.finish()


def wrapped(axes):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, wrap(model, optimizer, **axes)


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_training_goes_on_from_a_folder_as_if_it_had_not_ended(axes, tmp_path):
    def undisturbed(worker):
        model, pace = wrapped(axes)
        train(worker, model, pace, 0, 9)
        return flat(model), flat_buffers(model)

    def stopped(worker):
        model, pace = wrapped(axes)
        train(worker, model, pace, 0, 5)
        pace.save(tmp_path, epoch=3, rank=worker.rank)
        train(worker, model, pace, 5, 7)
        pace.close()
        again, pace = wrapped(axes)
        assert pace.load(tmp_path) == {"epoch": 3, "rank": worker.rank}
        assert pace.steps == 5
        train(worker, again, pace, 5, 9)
        return flat(again), flat_buffers(again)

    for expected, found in zip(on_ranks(undisturbed), on_ranks(stopped), strict=True):
        assert torch.allclose(found[0], expected[0], rtol=0, atol=1e-7)
        assert torch.allclose(found[1], expected[1], rtol=0, atol=1e-6)


def flat_buffers(model):
    return torch.cat([buffer.double().reshape(-1) for buffer in model.buffers()])


@pytest.mark.parametrize("axes", AXES[1:5], ids=str)
def test_the_state_of_another_rank_is_refused(axes):
    def work(worker):
        model, pace = wrapped(axes)
        train(worker, model, pace, 0, 3)
        state = pace.state_dict()
        foreign = dict(state, rank=0)
        pace.load_state_dict(state)
        if worker.rank == 1:
            with pytest.raises(WrongCommand, match=r"rank 1 of 2 loads the state that rank 0 of 2 saved.*pace.load"):
                pace.load_state_dict(foreign)

    on_ranks(work)


def test_state_that_is_the_same_everywhere_may_come_from_any_rank_and_any_number_of_ranks(tmp_path):
    def saves(worker):
        model, pace = wrapped({})
        train(worker, model, pace, 0, 3)
        pace.save(tmp_path)
        return flat(model)

    def loads(worker):
        model, pace = wrapped({})
        pace.load(tmp_path)
        return flat(model), pace.steps

    expected = on_ranks(saves)[0]
    for weights, steps in on_ranks(loads, size=3):
        assert torch.equal(weights, expected)
        assert steps == 3


def test_another_number_of_ranks_is_refused_where_state_belongs_to_ranks(tmp_path):
    def saves(worker):
        model, pace = wrapped(AXES[1])
        train(worker, model, pace, 0, 2)
        pace.save(tmp_path)

    def loads(worker):
        _, pace = wrapped(AXES[1])
        with pytest.raises(WrongCommand, match="was saved by 2 ranks, and this job has 3"):
            pace.load(tmp_path)

    on_ranks(saves)
    on_ranks(loads, size=3)


def test_the_last_two_checkpoints_are_kept_and_files_of_others_are_left(tmp_path):
    def work(worker):
        model, pace = wrapped({})
        for k in range(4):
            train(worker, model, pace, k, k + 1)
            pace.save(tmp_path)

    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "notes.txt").write_text("mine")
    on_ranks(work)
    assert (tmp_path / "latest").read_text() == "step-00000004\n"
    assert sorted(path.name for path in tmp_path.glob("step-*/rank-*")) == sorted(
        ["rank-0.snapshot", "rank-1.snapshot"] * 2
    )
    assert (tmp_path / "step-00000001" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(("text", "words"), [(None, "has no checkpoint"), ("../../etc", "names no checkpoint")])
def test_a_folder_without_a_checkpoint_is_refused(text, words, tmp_path):
    def work(worker):
        _, pace = wrapped({})
        with pytest.raises(WrongCommand, match=words):
            pace.load(tmp_path)

    if text is not None:
        (tmp_path / "latest").write_text(text)
    on_ranks(work, size=1)
