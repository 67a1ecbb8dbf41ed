"""What a worker sets up before it trains."""

import json

import pytest
import torch

from paceline.run.run import Run
from paceline.train import worker


@pytest.mark.parametrize(("threads", "expected"), [(None, 3), (2, 2)])
def test_a_worker_computes_with_the_threads_of_the_run_or_of_the_environment(threads, expected, monkeypatch):
    seen = []
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    monkeypatch.setattr(worker, "measure", lambda run, training, comm, state: {})
    worker.work(Run(model="mlp", threads=threads), {})
    assert seen == [expected]


def test_a_rank_tells_of_its_failure_without_secrets(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    try:
        raise OSError("wJalrXUtnFEMI was refused")
    except OSError as problem:
        worker.leave_failure(tmp_path, 0, 3, problem)
    told = json.loads((tmp_path / "rank-0.failed.json").read_text())
    assert (told["error"], told["step"], told["exit_code"]) == ("OSError: *** was refused", 3, 1)
    printed = capfd.readouterr().err
    assert "OSError: *** was refused" in told["traceback"]
    assert "wJalr" not in printed + json.dumps(told)
