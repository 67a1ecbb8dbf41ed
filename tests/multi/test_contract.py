"""A loop that was written for DDP, over shm, gloo and under torchrun, equals one process on the joint batch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import paceline

SCRIPT = Path(__file__).with_name("contract.py")
pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("forks")]


def seen_by(command, tmp_path):
    out = tmp_path / "seen.json"
    done = command(str(SCRIPT), str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


def launched(size, comm):
    return lambda *words: paceline("run", "-np", size, "--comm", comm, "--", sys.executable, *words)


def torchrun(size):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    return lambda *words: subprocess.run([*command, *words], capture_output=True, text=True, timeout=170)


LATER = pytest.mark.slow
CASES = [
    pytest.param(launched(2, "shm"), id="shm-2"),
    pytest.param(launched(2, "gloo"), id="gloo-2"),
    pytest.param(launched(3, "shm"), id="shm-3", marks=LATER),
    pytest.param(launched(3, "gloo"), id="gloo-3", marks=LATER),
    pytest.param(torchrun(2), id="torchrun-2", marks=LATER),
    pytest.param(torchrun(3), id="torchrun-3", marks=LATER),
]


@pytest.mark.parametrize("command", CASES)
def test_two_added_lines_equal_one_process_on_the_joint_batch(command, tmp_path):
    seen = seen_by(command, tmp_path)
    assert seen["error"] < 1e-12
    assert seen["writes"] < 1e-12, "a write has reached another rank or another step"
    for difference, (ours, ddp) in seen.get("scaler", []):
        assert ours == ddp != 1024.0, "a step overflowed and was skipped"
        assert difference < 1e-6  # float32; the order of the sum differs
