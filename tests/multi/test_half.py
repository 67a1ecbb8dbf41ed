"""Equal models in half precision stay equal among real processes, too."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("half.py")


@pytest.mark.multi
@pytest.mark.parametrize("comm", ["shm", pytest.param("gloo", marks=pytest.mark.slow)])
def test_processes_keep_equal_models_equal(comm):
    command = [sys.executable, "-m", "paceline", "run", "-np", "3", "--comm", comm, "--", sys.executable, str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
