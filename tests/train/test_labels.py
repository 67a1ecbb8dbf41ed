"""A label outside of the classes of the model: the message names the sample."""

import pytest
import torch
from torch.utils.data import TensorDataset

from paceline.comm.thread import run_ranks
from paceline.errors import WorkloadError
from paceline.measure.meter import Meter
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.build import training_of, workload_of
from paceline.train.evaluate import accuracy
from paceline.train.labels import blamed
from paceline.workload.sources import MENU
from tests.workload.sources.idxfiles import write_folder


def images(label):
    labels = torch.arange(64) % 10
    labels[37] = label
    return TensorDataset(torch.randn(64, 3, 8, 8), labels)


def too_large():
    return images(12)


def negative():
    return images(-1)


def trained(source, workers=2):
    run = Run(workers=workers, model="small_cnn(image_size=8, width=4)", source=source, epochs=1, global_batch=16)

    def body(comm):
        training = training_of(compose(run), comm)
        try:
            training.steps(4, Meter())
        finally:
            training.feed.close()

    return run_ranks(workers, body)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("too_large", r"training sample 37 has the label 12: .* no such class.*--classes 13 or more"),
        ("negative", r"training sample 37 has the label -1: .*labels count from 0. try: mend the sample"),
    ],
)
def test_a_training_sample_is_named(function, message):
    with pytest.raises(WorkloadError, match=message):
        trained(f"dataset(tests.train.test_labels:{function})", workers=1)


def test_a_test_sample_is_named(tmp_path):
    """The first of 613 test labels is 0; it becomes 7, and the training part has three classes."""
    folder = write_folder(tmp_path / "idx", train=96, test=613, size=8, classes=3)
    path = folder / "t10k-labels-idx1-ubyte"
    content = bytearray(path.read_bytes())
    content[8 + 300] = 7
    path.write_bytes(content)
    run = Run(model="small_cnn(width=4)", source=f"idx({folder})", global_batch=24)

    def body(comm):
        training = training_of(compose(run), comm)
        training.feed.close()
        return accuracy(training, comm)

    with pytest.raises(WorkloadError, match="test sample 300 has the label 7"):
        run_ranks(1, body)


def test_a_sample_is_named_before_the_first_step_where_the_classes_of_the_source_are_overruled(tmp_path):
    folder = write_folder(tmp_path / "idx", train=96, size=8, classes=3)
    path = folder / "train-labels-idx1-ubyte"
    content = bytearray(path.read_bytes())
    content[8] = 2
    path.write_bytes(content)
    run = Run(model="small_cnn(width=4, classes=2)", source=f"idx({folder})")
    with pytest.raises(WorkloadError, match=r"training sample 0 has the label 2: .*--classes 3 or more"):
        workload_of(run, MENU.make(run.source))


def test_other_problems_stay_what_they_are():
    batch = (torch.zeros(2, 3), torch.tensor([0, 1]))
    assert blamed(IndexError("list index out of range"), batch, None, "training") is None
    assert blamed(IndexError("Target 5 is out of bounds."), batch, None, "training") is None
    found = blamed(IndexError("Target 1 is out of bounds."), {"y": batch[1]}, None, "training")
    assert str(found).startswith("a training sample has the label 1")
