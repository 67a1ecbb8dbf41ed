"""A default process group of torch may be there before join, come after it, or be made by it."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("groups.py")
pytestmark = pytest.mark.multi


@pytest.mark.parametrize("mode", ["join", "before", "after"])
def test_a_script_may_use_torch_distributed_beside_join(mode):
    command = [sys.executable, "-m", "paceline", "run", "-np", "2", "--comm", "shm", "--", sys.executable]
    done = subprocess.run([*command, str(SCRIPT), mode], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seen 28 1.5" in done.stdout
