"""Elastic jobs as a user starts them: `paceline run --membership elastic -- python SCRIPT`."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.multi

SCRIPT = """
import os, signal, sys
if os.environ["RANK"] == "1" and sys.argv[1] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "leaves":
    sys.exit(0)
import torch
import paceline
worker = paceline.join()
model = torch.nn.Linear(2, 1)
pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
for x in worker.batches([torch.ones(2)] * 16, batch_size=4):
    model(x).sum().backward()
    if pace.step() and worker.rank == 0:
        print("committed", pace.steps, "with", worker.size)
"""


def launch(tmp_path, *flags, does):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-m", "paceline", "run", "-np", "2", "--membership", "elastic", *flags]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--", sys.executable, str(path), does], env=environ, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


def test_a_job_begins_without_a_worker_that_died_and_is_not_started_again(tmp_path):
    code, text = launch(tmp_path, "--restart", "never", does="dies")
    assert code == 0, text
    assert "1 of 2 workers ended before the first group; it begins without them" in text
    assert "committed 2 with 1" in text


def test_a_job_whose_scripts_never_train_ends(tmp_path):
    code, text = launch(tmp_path, does="leaves")
    assert code == 0, text
