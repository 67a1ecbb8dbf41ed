"""`paceline chaos` against a real script."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.multi, pytest.mark.slow]

SCRIPT = """
import time
import torch
import paceline
worker = paceline.join()
torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
data = torch.utils.data.TensorDataset(torch.randn(103, 4, generator=torch.Generator().manual_seed(1)))
for (x,) in worker.batches(data, batch_size=4, epochs=25):
    model(x).pow(2).mean().backward()
    time.sleep(0.01)
    pace.step()
"""


def test_kills_and_a_lost_coordinator_leave_the_bits_of_an_undisturbed_run(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    words = [sys.executable, "-m", "paceline", "chaos", "-np", "3", "--seed", "2", "--minutes", "0.15", "--every", "1"]
    words += ["--kinds", "kill,coordinator", "--compare", "--", sys.executable, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert "chaos: kill" in text
    assert "the final bits are those of the undisturbed run" in text
    assert "goodput" in text
