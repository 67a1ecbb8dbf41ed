"""Ranks wait with the deadline that the user set."""

import pytest
import torch

from paceline.run.run import Run
from paceline.train import worker


class Ended(Exception):
    pass


def test_the_deadline_of_a_run_is_that_of_its_comm(monkeypatch):
    seen = []

    def training_of(composed, comm, device):
        seen.append(comm.deadline)
        raise Ended

    monkeypatch.setattr("paceline.train.build.training_of", training_of)
    with pytest.raises(Ended):
        worker.work(Run(model="mlp", deadline=7.0, threads=torch.get_num_threads()), {"step": -1})
    assert seen == [7.0]
