"""Over gloo, ranks that make different calls end the job with an error that names both calls, never with a result."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.multi, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("apart.py")
NAMED = {
    "verb": ("all_sum of 4 float32, allreduce", "all_gather of 1 int64, allgather: rows of [] float32"),
    "dtype": ("all_sum of 8 float32", "all_sum of 4 float64"),
    "extra": ("all_sum of 1 float32, allreduce", "step 2"),
}


def run(case, comm, code=1):
    argv = [
        sys.executable,
        "-m",
        "paceline",
        "run",
        "-np",
        "2",
        "--comm",
        comm,
        "--",
        sys.executable,
        str(SCRIPT),
        case,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=90)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("case", NAMED)
def test_different_calls_end_the_job_and_both_are_named(case):
    said = run(case, "gloo")
    assert "] a result" not in said
    assert all(text in said for text in NAMED[case]), said


@pytest.mark.parametrize("comm", ["gloo", "shm"])
@pytest.mark.parametrize("case", ["wrap", "averaged", "neighbors"])
def test_models_shapes_and_steps_are_compared_as_well(case, comm):
    said = run(case, comm)
    assert "make different calls" in said
    assert "] a result" not in said


@pytest.mark.parametrize("comm", ["gloo", "shm"])
def test_two_models_may_have_their_backward_in_another_order_on_a_rank(comm):
    """Ranks agree after each backward which models were reached, and a model that was not reached adds zeros."""
    said = run("models", comm, code=0)
    assert all(f"[{rank}] a result [1.0, 1.0, 100.0, 100.0]" in said for rank in range(2)), said


def test_the_exit_code_of_a_rank_that_ends_early_is_the_cause():
    said = run("exit", "shm")
    assert "error: rank 1" in said
    assert "ended with exit code 3" in said


@pytest.mark.parametrize("comm", ["gloo", "shm"])
def test_a_step_that_one_rank_skips_ends_the_job_and_both_counts_are_named(comm):
    """Until the end the calls are alike: nothing tells them apart but their number."""
    said = run("skipped", comm)
    assert "made more calls than rank 1" in said
    assert "[0] a result" not in said
