"""pace.save and pace.load keep all of a training, and a rank does not take the state of another."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from paceline.api.wrap import wrap
from paceline.errors import WrongCommand
from paceline.files.snapshot import Snapshot
from paceline.train.elastic_pace import ElasticPace
from paceline.train.saving import load_alone, pointed_at, remove_older
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


def elastic(steps, *, first=True):
    """A member of an elastic job that has made some steps."""
    noted = []
    presence = SimpleNamespace(first=first, note=noted.append, away=nullcontext, inside=False, committed=steps)
    pace = SimpleNamespace(_presence=presence, steps=steps, _latest={}, noted=noted, phase=nullcontext)
    pace._state, pace.state_dict = dict, lambda: {"steps": pace.steps}
    return pace


def test_a_worker_that_was_stopped_does_not_make_an_older_checkpoint_the_latest(tmp_path, capsys):
    stopped, other = elastic(400), elastic(400, first=False)
    assert ElasticPace.save(stopped, tmp_path)
    assert not ElasticPace.save(other, tmp_path)
    other._presence.first, other.steps = True, 410  # the group goes on without the first one
    assert ElasticPace.save(other, tmp_path)
    stopped.steps = 405
    assert not ElasticPace.save(stopped, tmp_path)
    assert pointed_at(tmp_path) == 410
    assert (tmp_path / "step-00000410" / "rank-0.snapshot").is_file()
    assert stopped.noted == ["no checkpoint"]
    assert "another worker has written that of step 410" in capsys.readouterr().err
    other.steps = 420
    assert ElasticPace.save(other, tmp_path)
    assert pointed_at(tmp_path) == 420


def test_a_job_that_begins_anew_in_an_old_folder_writes_its_own_latest(tmp_path):
    assert ElasticPace.save(elastic(810), tmp_path)
    anew = elastic(10)
    for steps in (10, 20):
        anew.steps = steps
        assert ElasticPace.save(anew, tmp_path)
        assert pointed_at(tmp_path) == steps
    assert (tmp_path / "step-00000810" / "rank-0.snapshot").is_file()


def test_only_older_checkpoints_are_removed_and_links_are_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    for place in (*(tmp_path / f"step-{n:08d}" for n in (3, 5, 7, 9, 100_000_000)), elsewhere):
        place.mkdir()
        (place / "rank-0.snapshot").touch()
    (tmp_path / "step-00000003" / ".rank-1.snapshot.77.draft").touch()
    (tmp_path / "step-00000001").symlink_to(elsewhere)
    remove_older(tmp_path, "step-00000007")
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        *("step-00000001", "step-00000005", "step-00000007", "step-00000009", "step-100000000")
    ]
    assert (elsewhere / "rank-0.snapshot").exists()
    remove_older(tmp_path, "step-100000000")
    assert sorted(path.name for path in tmp_path.glob("step-*") if not path.is_symlink()) == [
        *("step-00000009", "step-100000000")
    ]


def test_a_folder_of_another_kind_of_checkpoint_is_refused(tmp_path):
    def work(worker):
        _, pace = wrapped({})
        with pytest.raises(WrongCommand, match="checkpoints of paceline run --checkpoint"):
            pace.save(tmp_path)

    (tmp_path / "latest.json").write_text("{}")
    on_ranks(work, size=1)
    with pytest.raises(WrongCommand, match="checkpoints of paceline run --checkpoint"):
        ElasticPace.save(elastic(1), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["latest.json"]


@pytest.mark.parametrize("state", [{"weights": torch.ones(2)}, {"model": None}, [1, 2], None], ids=str)
def test_a_snapshot_of_something_else_is_refused(state, tmp_path):
    def work(worker):
        _, pace = wrapped({})
        with pytest.raises(WrongCommand, match=r"rank-0.snapshot is no checkpoint of this kind.*without.*try: "):
            pace.load(tmp_path)

    (tmp_path / "latest").write_text("step-00000003\n")
    Snapshot(state).save(tmp_path / "step-00000003" / "rank-0.snapshot")
    on_ranks(work)
    with pytest.raises(WrongCommand, match=r"rank-0.snapshot is no checkpoint of this kind.*without.*try: "):
        load_alone(tmp_path)
