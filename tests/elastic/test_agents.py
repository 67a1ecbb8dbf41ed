"""Elastic jobs on several hosts: agents start the workers, and the first one also the coordinator."""

import json
import os
import sys

import pytest

from paceline.elastic.launch import write_spec
from tests.cluster.agents import start

pytestmark = pytest.mark.multi

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import torch
import paceline
worker = paceline.join()
model = torch.nn.Linear(2, 1)
pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), membership="elastic")
life = Path(sys.argv[1])
for x in worker.batches([torch.ones(2)] * 16, batch_size=4, epochs=10):
    model(x).sum().backward()
    if pace.step():
        time.sleep(0.2)
        if pace.steps == 5 and os.environ["RANK"] == "1" and not life.exists():
            life.touch()
            os.kill(os.getpid(), signal.SIGKILL)
print("ended at", pace.steps, "with", worker.size)
"""


def test_a_worker_of_another_host_dies_is_restarted_and_training_ends(tmp_path, capfd):
    script, folder = tmp_path / "train.py", tmp_path / "job"
    script.write_text(SCRIPT)
    folder.mkdir(mode=0o700)
    write_spec(folder, start=2, least=1, most=4, task=50, restart="3")
    os.environ["PACELINE_CHOICES"] = json.dumps({"comm": "tcp"})
    try:
        with start(folder, [sys.executable, str(script), str(tmp_path / "life")]) as job:
            job.wait()
    finally:
        del os.environ["PACELINE_CHOICES"]
    shown = capfd.readouterr()
    assert (tmp_path / "life").exists()
    assert "ended at 20" in shown.out, shown
    assert "incidents: 1 " in shown.err, shown
