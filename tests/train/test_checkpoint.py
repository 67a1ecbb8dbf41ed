"""Checkpoints: a run that was stopped goes on with the same bits, and every wrong one is named."""

import errno
import os

import pytest
import torch
from torch import nn

from paceline.comm.thread import run_ranks
from paceline.errors import CallMismatch, DamagedFile, NoRoom, PeerLost, Refused, WrongCommand
from paceline.files.snapshot import Snapshot
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.build import training_of
from paceline.train.worker import measure
from tests.train.problems import flat

BASE = Run(
    workers=2,
    model="mlp(hidden=8, image_size=4)",
    source="fake(cpu, samples=37)",
    global_batch=8,
    epochs=2,
    every=2,
    lr_schedule="cosine(warmup=1)",
)


class Killed(Exception):
    pass


def normalized(*, image_size: int = 8, classes: int = 10) -> nn.Module:
    """A network with statistics, the state of a rank that is not a parameter."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * (image_size - 2) ** 2, classes),
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setenv("PACELINE_WATCHED", "0")
    monkeypatch.setenv("PACELINE_FLOPS", "1")


def trained(run, stop=None):
    """Final weights, losses and the report of each rank; all ranks stop before update `stop`."""

    def work(comm):
        training = training_of(compose(run), comm)
        left = training.pace.step

        def step(*args):
            if training.pace.steps == stop:
                raise Killed
            return left(*args)

        training.pace.step = step
        try:
            found = measure(run, training, comm, {})
        except (Killed, PeerLost, CallMismatch):
            assert stop is not None  # a rank may notice that another one has stopped before it does so itself
            return None
        finally:
            training.feed.close()
        return flat(training.workload.model), training.losses, found

    try:
        return run_ranks(run.workers, work)
    except CallMismatch:
        if stop is None:
            raise
        return [None] * run.workers  # with a schedule that crosses the step, rank 0 was one call ahead when it stopped


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"model": "tests.train.test_checkpoint:normalized", "image_size": 8},
        {"strategy": "neighbor_allreduce"},
        {"compressor": "feedback(topk(ratio=0.1))"},
        {"strategy": "p3"},
        {"rule": "diloco(every=3)"},
        {"accumulate": 2},
        {"schedule": "mgwfbp"},
        {"schedule": "auto"},
        {"schedule": "auto(crossing=true)"},
    ],
    ids=lambda choices: next(iter(choices.values()), "allreduce"),
)
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path, choices):
    run = BASE.with_(**choices)
    whole = trained(run.with_(every=None))
    assert trained(run.with_(checkpoint=str(tmp_path / "kept")), stop=7)[0] is None
    resumed = trained(run.with_(checkpoint=str(tmp_path / "kept"), resume=True))
    for (weights, losses, _), (again, goes_on, _) in zip(whole, resumed, strict=True):
        assert torch.equal(weights, again)
        assert losses == goes_on


def test_without_the_saved_state_the_bits_differ(tmp_path, monkeypatch):
    """The negative control: residuals that are not restored change the end."""
    run = BASE.with_(compressor="feedback(topk(ratio=0.1))", checkpoint=str(tmp_path / "kept"))
    whole = trained(BASE.with_(compressor="feedback(topk(ratio=0.1))", every=None))
    trained(run, stop=7)
    monkeypatch.setattr("paceline.train.pace.Pace.load_state_dict", lambda self, state: None)
    resumed = trained(run.with_(resume=True))
    assert not torch.equal(whole[0][0], resumed[0][0])


def test_accuracy_and_seconds_go_on_and_old_checkpoints_are_removed(tmp_path):
    run = BASE.with_(workers=1, checkpoint=str(tmp_path / "kept"))
    trained(run, stop=9)
    ((_, _, report),) = trained(run.with_(resume=True))
    assert len(report.seconds) == 1
    assert report.samples == 37 - 8 * 3
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == ["latest.json", "step-00000008", "step-00000010"]
    with pytest.raises(WrongCommand, match="has 2 epochs already"):
        trained(run.with_(resume=True))


def test_a_new_checkpoint_stays_beside_folders_of_later_steps_and_files_of_the_user(tmp_path):
    """Runs that were killed while they saved leave folders of later steps."""
    kept = tmp_path / "kept"
    for name in ("step-00000001", "step-00000090", "step-00000091"):
        (kept / name).mkdir(parents=True)
        (kept / name / "notes.txt").write_text("mine")
    run = BASE.with_(workers=1, checkpoint=str(kept))
    trained(run, stop=9)
    assert (kept / "step-00000008" / "rank-0.snapshot").is_file()
    assert len(list(kept.glob("*/notes.txt"))) == 3
    trained(run.with_(resume=True))


def test_a_folder_of_pace_save_is_refused(tmp_path):
    (tmp_path / "latest").write_text("step-00000812\n")
    with pytest.raises(WrongCommand, match=r"it holds checkpoints of pace\.save"):
        trained(BASE.with_(workers=1, checkpoint=str(tmp_path)))


@pytest.mark.parametrize(
    "text", ['{"step": Infinity, "workers": 1}', '{"step": NaN, "workers": 1}', "[" * 60_000, "[]", "{}", ""]
)
def test_a_damaged_name_of_the_last_checkpoint_is_refused(tmp_path, text):
    (tmp_path / "latest.json").write_text(text)
    with pytest.raises(DamagedFile, match="it does not name a checkpoint"):
        trained(BASE.with_(workers=1, checkpoint=str(tmp_path), resume=True))


def test_another_number_of_workers_starts_from_the_mean(tmp_path, capsys):
    run = BASE.with_(checkpoint=str(tmp_path / "kept"), strategy="neighbor_allreduce")
    trained(run, stop=7)
    ends = trained(run.with_(resume=True, workers=1))
    assert len(ends) == 1
    assert "1 start from the mean" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "mlp(hidden=9, image_size=4)"}, r"--model mlp\(hidden=9.*was written with mlp\(hidden=8"),
        ({"strategy": "local_sgd"}, "--strategy local_sgd: .*was written with None"),
        ({"global_batch": 10}, "--global-batch 10: .*was written with 8"),
        ({"seed": 5}, "--seed 5"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, changes, why):
    run = BASE.with_(workers=1, checkpoint=str(tmp_path / "kept"))
    trained(run, stop=3)
    with pytest.raises(WrongCommand, match=why):
        trained(run.with_(resume=True, **changes))


def test_a_snapshot_of_something_else_is_refused(tmp_path):
    run = BASE.with_(workers=1, checkpoint=str(tmp_path / "kept"))
    trained(run, stop=3)
    path = tmp_path / "kept" / "step-00000002" / "rank-0.snapshot"
    state = Snapshot.load(path).state
    for changed in ({"weights": 1}, [1], {name: part for name, part in state.items() if name != "feed"}):
        Snapshot(changed).save(path)
        with pytest.raises(WrongCommand, match=r"rank-0.snapshot is no checkpoint of this kind.*(run|feed).*try: "):
            trained(run.with_(resume=True))
    Snapshot(state).save(path)
    trained(run.with_(resume=True))


def test_a_folder_with_a_checkpoint_is_not_overwritten(tmp_path):
    run = BASE.with_(workers=1, checkpoint=str(tmp_path / "kept"))
    trained(run, stop=3)
    with pytest.raises(WrongCommand, match=r"holds a checkpoint already, of step 2.*--resume"):
        trained(run)


def test_a_full_disk_leaves_the_old_checkpoint_whole(tmp_path, monkeypatch):
    run = BASE.with_(workers=1, checkpoint=str(tmp_path / "kept"))
    trained(run, stop=3)
    before = Snapshot.load(tmp_path / "kept" / "step-00000002" / "rank-0.snapshot")

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(NoRoom, match="No space left"):
            trained(run.with_(resume=True))
    assert (
        Snapshot.load(tmp_path / "kept" / "step-00000002" / "rank-0.snapshot").state["samples"]
        == before.state["samples"]
    )
    trained(run.with_(resume=True))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"checkpoint": "x"}, "--checkpoint x: it belongs to training for epochs"),
        ({"target": 0.5}, "--target 0.5: it belongs"),
        ({"every": 3, "epochs": 1}, "--every 3: there is no folder"),
        ({"resume": True, "epochs": 1}, "--resume: there is no folder"),
    ],
)
def test_flags_that_need_others_are_refused(settings, why):
    with pytest.raises(Refused, match=why):
        compose(Run(**settings))
