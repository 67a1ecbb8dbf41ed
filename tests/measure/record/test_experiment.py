from pathlib import Path

import pytest

from paceline.errors import WrongCommand
from paceline.files.toml import tomllib
from paceline.measure.record.experiment import Experiment, read_experiment, with_comparison

FIGURES = {
    "rate": {"value": 400.0, "low": 380.0, "high": 420.0},
    "per_worker": {"value": 200.0},
    "step": {"value": 0.1},
}
TEXT = """\
description = "from the object store, host network"
time = "2026-11-15 23:00 UTC"
storage = "object store"
endpoint = "https://store.example.org"
workload = "ResNet-50, batch 128"
code = "https://example.org/train.py"
cluster = "four machines in one rack"
servers = 4
addresses = ["10.0.0.1", "10.0.0.2"]
gateway = false
machine = "docs/machines.md"
results = "see the record"
summary = "as fast as before"
next_steps = "the same with real data"

[expected]
rate = 430
tolerance = 0.1

[store]
kind = "minio"

[data]
bucket = "imagenet"
objects = 1024
size = "150 GB"
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(TEXT)
    return path


def test_every_published_field_can_be_given_and_is_kept(path):
    kept = with_comparison(read_experiment(path), FIGURES)
    assert kept.pop("compared")
    assert kept.keys() == tomllib.loads(TEXT).keys() == Experiment.model_fields.keys()


def test_what_was_expected_stands_beside_what_was_measured(path):
    [row] = with_comparison(read_experiment(path), FIGURES)["compared"]
    assert row == {
        "what": "rate",
        "expected": 430.0,
        "measured": 400.0,
        "low": 380.0,
        "high": 420.0,
        "verdict": "as expected",
    }


@pytest.mark.parametrize(
    ("expected", "verdict"),
    [
        ({"rate": 415}, "as expected"),
        ({"rate": 430}, "below"),
        ({"rate": 300}, "above"),
        ({"per_worker": 201}, "as expected"),
        ({"step": 0.05}, "above"),
        ({"efficiency": 0.9}, "not measured"),
    ],
)
def test_an_expectation_is_met_inside_the_interval_or_the_tolerance(expected, verdict):
    experiment = Experiment.model_validate({"expected": {**expected, "tolerance": 0.02}})
    [row] = with_comparison(experiment, FIGURES)["compared"]
    assert row["verdict"] == verdict


def test_a_typo_names_the_line(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(TEXT.replace("tolerance", "tolerence"))
    with pytest.raises(WrongCommand, match=r"line 18: 'tolerence' is not known here. try: did you mean tolerance\?"):
        read_experiment(path)
    with pytest.raises(WrongCommand, match="No such file"):
        read_experiment(Path("nowhere.toml"))
