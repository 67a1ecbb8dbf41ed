"""Training on files with real processes: epochs, and an accuracy for each of them."""

import json

import pytest

from tests.forked import paceline
from tests.workload.sources.idxfiles import write_folder

pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("forks")]


def test_epochs_on_files_end_with_an_accuracy_each(tmp_path):
    folder = write_folder(tmp_path / "idx", train=96, test=300, size=8)
    path = tmp_path / "r.json"
    words = ["-np", "2", "--model", "small_cnn(width=4)", "--source", f"idx({folder})", "--epochs", "3"]
    words += ["--optimizer", "sgd(lr=0.05)", "--global-batch", "8", "--warmup", "1", "--json", str(path)]
    done = paceline("run", *words)
    assert done.returncode == 0, done.stderr
    record = json.loads(path.read_text())
    assert [entry["epoch"] for entry in record["accuracy"]] == [1, 2, 3]
    assert {entry["samples"] for entry in record["accuracy"]} == {300}
    assert record["accuracy"][-1]["value"] > 0.9
    assert f"accuracy after epoch 3: {record['accuracy'][-1]['value']:.4f} of 300" in done.stdout
    # what evaluation moved is not counted as traffic of a step: gradients and flags, once per step and worker. Epochs
    # have no warm-up, so the order of the eight tensors, which rank 0 sends once after the first step, is in the mean
    first, second = record["bytes"]["received_per_step"]
    assert first == sum(record["plan"]["nbytes"])
    assert (second - first) * 36 == pytest.approx(8 * 8)
