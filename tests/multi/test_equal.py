"""Real processes over shm, tcp and gloo keep the comm laws and equal one process on the concatenated batch."""

import json
import sys
from pathlib import Path

import pytest

from tests.forked import paceline

SCRIPT = Path(__file__).with_name("equal.py")
pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("forks")]


QUICK = [
    ("tcp", 2),
    ("shm", 2),
    ("gloo", 2),
]
LONGER = [pytest.param(*case, marks=pytest.mark.slow) for case in (("shm", 3), ("shm", 4), ("gloo", 3), ("gloo", 4))]


@pytest.mark.parametrize(("comm", "size"), [*QUICK, *LONGER])
def test_processes_equal_one_process(comm, size, tmp_path):
    out = tmp_path / "found.json"
    done = paceline("run", "-np", size, "--comm", comm, "--", sys.executable, SCRIPT, out)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["comm"].lower().startswith(comm)
    assert len(found["cases"]) == (27 if size != 4 else 18)
    for case, optimizer, schedule, error, tolerance, same in found["cases"]:
        assert same, f"replicas differ: {case} {optimizer} {schedule}"
        assert error <= tolerance, f"{case} {optimizer} {schedule}: {error}"
