"""A default process group of torch may be there before join, come after it, or be made by it."""

import sys
from pathlib import Path

import pytest

from tests.forked import paceline

SCRIPT = Path(__file__).with_name("groups.py")
pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("forks")]


@pytest.mark.parametrize("mode", ["join", "before", "after"])
def test_a_script_may_use_torch_distributed_beside_join(mode):
    done = paceline("run", "-np", 2, "--comm", "shm", "--", sys.executable, SCRIPT, mode)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seen 28 1.5" in done.stdout
