"""What a worker sets up before it trains."""

import pytest
import torch

from paceline import worker
from paceline.run import Run


@pytest.mark.parametrize(("threads", "expected"), [(None, 3), (2, 2)])
def test_a_worker_computes_with_the_threads_of_the_run_or_of_the_environment(threads, expected, monkeypatch):
    seen = []
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    monkeypatch.setattr(worker, "measure", lambda run, training, comm, state: {})
    worker.work(Run(model="mlp", threads=threads), {})
    assert seen == [expected]
