"""Scalars go to a tracking service only if asked. The services are stood in for by small modules at the import."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from paceline.errors import MissingPackage, UnknownName
from paceline.report import trackers
from paceline.report.tensorboard import scalars
from paceline.run.run import Run
from tests.race.fake_race import record_of


@pytest.fixture
def record():
    logged = {"val/loss": {"steps": [0, 4], "values": [2.0, 1.5], "ranks": 2}}
    return record_of(Run(model="mlp", strategy="wfbp"), 100.0).model_copy(update={"metrics": logged})


def installed(monkeypatch, name, module):
    stand_in = ModuleType(name)
    vars(stand_in).update(module)
    stand_in.__spec__ = SimpleNamespace(name=name)
    monkeypatch.setitem(sys.modules, name, stand_in)


def test_logged_figures_are_scalars_at_their_updates(record):
    assert [one for one in scalars(record) if one[0] == "logged/val/loss"] == [
        ("logged/val/loss", 0, 2.0),
        ("logged/val/loss", 4, 1.5),
    ]


def test_wandb_gets_one_run_with_steps_in_order(record, monkeypatch):
    sent, ended = [], []
    run = SimpleNamespace(log=lambda values, step: sent.append((step, values)), finish=lambda: ended.append(True))
    begun = {}
    installed(monkeypatch, "wandb", {"init": lambda **settings: begun.update(settings) or run})
    trackers.send(record, "wandb")
    assert (begun["project"], begun["name"], begun["config"]["strategy"]) == ("paceline", record.id, "wfbp")
    assert [step for step, _ in sent] == [0, 4]
    assert sent[0][1]["loss"] == 2.0
    assert sent[1][1] == {"logged/val/loss": 1.5}
    assert ended == [True]


def test_mlflow_gets_settings_and_metrics(record, monkeypatch):
    import contextlib

    names, params, sent = [], {}, []
    module = {
        "start_run": lambda run_name: names.append(run_name) or contextlib.nullcontext(),
        "log_params": params.update,
        "log_metrics": lambda values, step: sent.append((step, values)),
    }
    installed(monkeypatch, "mlflow", module)
    trackers.send(record, "mlflow")
    assert (names, params["command"]) == ([record.id], record.text)
    assert sent[-1] == (4, {"logged/val/loss": 1.5})


def test_a_service_without_its_package_or_with_an_unknown_name_is_refused(monkeypatch):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match="--log-to wandb needs wandb"):
        trackers.check_tracker("wandb")
    with pytest.raises(UnknownName, match="mlflow"):
        trackers.check_tracker("mlflov")
