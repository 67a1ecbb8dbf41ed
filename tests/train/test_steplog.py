"""Updates of a user's own loop are timed in a race, and only there."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline
from paceline.errors import WrongCommand
from paceline.train.steplog import StepLog

DATA = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))


def trained(**settings):
    """A loop alone: this process is the only rank."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with paceline.join() as worker:
        pace = paceline.wrap(model, optimizer, **settings)
        for x, y in worker.batches(DATA, batch_size=8):
            (model(x) - y).square().mean().backward()
            pace.step()
    return pace


@pytest.fixture
def in_a_race(tmp_path, monkeypatch):
    def chosen(**choices):
        monkeypatch.setenv("PACELINE_MEASURE", "1")
        monkeypatch.setenv("PACELINE_JOB", str(tmp_path))
        monkeypatch.setenv("PACELINE_CHOICES", json.dumps(choices))
        return tmp_path / "steps-0.json"

    return chosen


@pytest.mark.parametrize("strategy", ["wfbp", "limit"])
def test_every_update_is_in_the_file_that_a_race_reads(in_a_race, strategy):
    path = in_a_race(strategy=strategy)
    trained(strategy="allreduce")
    found = json.loads(path.read_text())
    assert len(found["steps"]) == len(found["parts"]["exposed"]) == len(found["parts"]["update"]) == 8
    assert found["batch"] == 8
    assert found["plan"].get("chunks") == (2 if strategy == "wfbp" else None)


def test_with_accumulation_an_entry_is_an_update(in_a_race):
    path = in_a_race()
    trained(accumulate=2)
    found = json.loads(path.read_text())
    assert (len(found["steps"]), found["batch"]) == (4, 16)


def test_outside_a_race_nothing_is_timed(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_JOB", str(tmp_path))
    assert trained().on_step is None
    assert list(tmp_path.iterdir()) == []


def test_only_the_launcher_can_put_a_reference_in_place_of_a_strategy(in_a_race):
    why = "only the launcher can put it in place of one. try: paceline run --strategy limit -- python SCRIPT"
    with pytest.raises(WrongCommand, match=why):
        trained(strategy="limit")
    in_a_race(exchange="allreduce")
    with pytest.raises(WrongCommand, match=why):
        trained(strategy="limit")


def test_parts_of_an_update_are_in_the_file_and_fit_into_its_time(in_a_race):
    path = in_a_race()
    trained(strategy="wfbp")
    found = json.loads(path.read_text())
    for number, whole in enumerate(found["steps"]):
        parts = {name: found["parts"][name][number] for name in ("data", "forward", "backward", "exposed", "update")}
        assert all(parts[name] > 0 for name in ("data", "forward", "backward", "update"))
        assert sum(parts.values()) <= whole


def test_the_file_names_the_strategy_that_the_script_has_used(in_a_race):
    path = in_a_race(schedule="bsp")
    trained(strategy="wfbp")
    assert json.loads(path.read_text())["settings"] == {"strategy": "wfbp", "schedule": "bsp"}
    in_a_race(strategy="limit")
    trained(strategy="wfbp")
    assert json.loads(path.read_text())["settings"] == {"strategy": "limit"}


def test_a_mark_shows_that_updates_are_timed_even_if_the_script_fails(in_a_race):
    path = in_a_race()

    def fails():
        with paceline.join():
            model = nn.Linear(4, 1)
            paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
            raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        fails()
    assert [one.name for one in path.parent.iterdir()] == ["measured-0"]


def test_of_a_long_training_the_first_updates_are_kept_and_a_note_says_so(monkeypatch):
    monkeypatch.setattr("paceline.train.steplog.MOST", 3)
    pace = trained()
    log = StepLog(pace, model=pace.model)
    for _ in range(5):
        log.note()
    report = log.report(device="cpu")
    assert (len(report.steps), len(report.parts["forward"])) == (3, 3)
    assert report.notes == ["rates and times are those of the first 3 of 5 updates"]


def test_an_entry_lasts_from_update_to_update():
    ticks = iter([0.0, 1.0, 3.0, 6.0])
    pace = trained()
    log = StepLog(pace, clock=lambda: next(ticks))
    for _ in range(3):
        log.note()
    assert log.steps == [1.0, 2.0, 3.0]


def test_the_batch_is_that_of_an_update_after_a_checkpoint_and_beside_an_evaluation(in_a_race):
    path = in_a_race()
    model = nn.Linear(4, 1)
    with paceline.join() as worker:
        pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        pace.load_state_dict({**pace.state_dict(), "steps": 200})
        for k, (x, y) in enumerate(worker.batches(DATA, batch_size=8)):
            (model(x) - y).square().mean().backward()
            pace.step()
            if k == 3:
                list(worker.batches(DATA, batch_size=32))
    assert json.loads(path.read_text())["batch"] == 8


def test_batches_of_several_sizes_count_with_their_mean():
    given = iter([(0, 0), (1, 8), (1, 8), (2, 32), (2, 32), (3, 40), (3, 40), (9, 240), (9, 240)])
    log = StepLog(trained(), lambda: next(given))
    for _ in range(4):
        log.note()
    assert log.batches == [(1, 8), (1, 24), (1, 8), (6, 200)]
    assert log.batch == 13


@pytest.mark.filterwarnings("error")
def test_logged_figures_are_in_the_file_that_a_race_reads(in_a_race):
    path = in_a_race(strategy="wfbp")
    model = nn.Linear(4, 1)
    with paceline.join() as worker:
        pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in worker.batches(DATA, batch_size=16):
            loss = (model(x) - y).square().mean()
            loss.backward()
            pace.step()
            pace.log(loss=loss, late=float("nan"))
        paceline.log(accuracy=0.5)
        paceline.log(accuracy=0.75)
        with pytest.raises(WrongCommand, match="it is not one number"):
            pace.log(loss=torch.zeros(2))
    found = json.loads(path.read_text())
    assert [step for step, _ in found["metrics"]["loss"]] == [1, 2, 3, 4]
    assert found["metrics"]["accuracy"] == [[4, 0.75]]  # the last value after the same update
    assert found["notes"] == ["4 logged values not kept: not finite, or too many"]
