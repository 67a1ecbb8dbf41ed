"""The deadline that was asked for is the one that ranks wait with."""

import pytest
import torch

from paceline import worker
from paceline.run import Run


class Ended(Exception):
    pass


def test_the_deadline_of_a_run_is_that_of_its_comm(monkeypatch):
    seen = []

    def training_of(run, axes, comm, device):
        seen.append(comm.deadline)
        raise Ended

    monkeypatch.setattr("paceline.build.training_of", training_of)
    with pytest.raises(Ended):
        worker.work(Run(model="mlp", deadline=7.0, threads=torch.get_num_threads()), {"step": -1})
    assert seen == [7.0]
