"""A process may join again after it has left, and what goes wrong when it leaves is its exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import paceline

pytestmark = pytest.mark.multi


ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("comm", ["shm", "gloo"])
def test_ranks_join_again(comm):
    script = Path(__file__).with_name("twice.py")
    done = paceline("run", "-np", 2, "--comm", comm, "--deadline", 20, "--", sys.executable, script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "joined three times" in done.stdout


def test_a_failure_at_the_end_of_a_process_is_its_exit_code():
    code = """
import paceline
def fail():
    raise OSError("no room for the times")
paceline.join().at_close = fail
print("trained")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 1
    assert "no room for the times" in done.stderr
    assert done.stdout == "trained\n"
