"""Commands with forked workers, as many tests here run them, end like commands that start everything anew."""

import sys

import pytest

from tests.forked import paceline
from tests.multi.test_run import anew

pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("forks")]

SCRIPT = """
import os, sys, torch, paceline
worker = paceline.join()
print("sum", paceline.allreduce(torch.ones(1), average=False).item(), torch.get_num_threads())
print("at", os.getcwd(), sys.argv[1:], __name__, file=sys.stderr)
worker.close()
if "fails" in sys.argv:
    raise ValueError("on purpose")
"""


@pytest.mark.parametrize("end", ["ends", "fails"])
def test_output_and_exit_code_are_those_of_new_processes(end, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    words = ["run", "-np", "2", "--threads", "1", "--", sys.executable, str(script), end]
    forked, new = paceline(*words), anew(*words)
    assert forked.returncode == new.returncode == (end == "fails")
    assert "sum 2.0" in forked.stdout
    assert sorted(forked.stdout.splitlines()) == sorted(new.stdout.splitlines())
    places = [sorted(line for line in done.stderr.splitlines() if "] at " in line) for done in (forked, new)]
    assert places[0] == places[1]
    assert len(places[0]) == 2
    if end == "fails":
        assert all("ended with exit code 1: ValueError: on purpose" in done.stderr for done in (forked, new))


def test_a_command_that_cannot_be_forked_is_noticed():
    with pytest.raises(AssertionError, match="cannot be forked"):
        paceline("run", "-np", "1", "--", sys.executable, "-c", "pass")
