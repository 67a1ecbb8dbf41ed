"""Equal models in half precision stay equal among real processes, too."""

import sys
from pathlib import Path

import pytest

from tests.forked import paceline

SCRIPT = Path(__file__).with_name("half.py")


@pytest.mark.multi
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("comm", ["shm", pytest.param("gloo", marks=pytest.mark.slow)])
def test_processes_keep_equal_models_equal(comm):
    done = paceline("run", "-np", 3, "--comm", comm, "--", sys.executable, SCRIPT)
    assert done.returncode == 0, done.stdout + done.stderr
