"""A second process of a rank never takes part, and no file of the user is ever written, whoever joins when."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import Done, paceline

pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("forks")]

SCRIPT = Path(__file__).with_name("late.py")
CONTENT = bytes(range(256)) * 4096  # 1 MiB, larger than any control segment of two ranks
TWICE = """
import paceline, torch
with paceline.join() as worker:
    assert paceline.allreduce(torch.ones(1), average=False).item() == 2
    print("turn", worker.rank)
"""


@pytest.fixture(autouse=True)
def precious(tmp_path, monkeypatch):
    path = tmp_path / "precious.dat"
    path.write_bytes(CONTENT)
    monkeypatch.setenv("PRECIOUS", str(path))
    yield path
    assert path.read_bytes() == CONTENT


def launch(*command, launcher="paceline", comm="auto"):
    words = ["run", "-np", "2", "--comm", comm, "--", *command]
    if launcher == "forked":
        return without_ranks(paceline(*words))
    argv = {
        "paceline": [sys.executable, "-m", "paceline", *words],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python", *command],
    }
    return without_ranks(subprocess.run(argv[launcher], capture_output=True, text=True, timeout=120))


def without_ranks(done):
    """What was printed, without the rank before each line."""
    return Done(done.returncode, re.sub(r"(?m)^\[\d\] ?", "", done.stdout), done.stderr)


def run(mode, launcher="paceline", comm="auto"):
    return launch(sys.executable, str(SCRIPT), mode, launcher=launcher, comm=comm)


@pytest.mark.parametrize("launcher", ["forked", "torchrun"])
@pytest.mark.parametrize("mode", ["subprocess", "everywhere"])
def test_a_subprocess_of_a_rank_cannot_join_its_job(mode, launcher):
    done = run(mode, launcher)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("is done") == 2
    refusals = [line for line in done.stdout.splitlines() if line.startswith("second:")]
    assert len(refusals) == (2 if mode == "everywhere" else 1)
    for line in refusals:
        assert "wants to join: it was started by process" in line
        assert 'if __name__ == "__main__":' in line


@pytest.mark.parametrize("mode", ["spawn-loader", "forkserver-loader"])
def test_a_loader_that_imports_the_script_again_is_told_of_the_main_guard(mode):
    done = run(mode)
    assert (
        "which joined the same job as rank 1. try: put the training code under if __name__" in done.stdout + done.stderr
    )


def test_a_loader_that_forks_works_without_a_main_guard():
    done = run("fork-loader", "forked")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "batches: 8" in done.stdout


@pytest.mark.parametrize("comm", ["shm", "gloo"])
def test_a_forked_child_ends_without_its_parent_and_cannot_take_its_part(comm):
    done = run("fork", comm=comm)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "codes: 0 3 4 5" in done.stdout
    assert "a collective in process" in done.stdout
    assert done.stdout.count("is done") == 2


def test_a_script_that_forks_over_gloo_ends(tmp_path):
    """The child ends as a script does, so Python destroys what its modules hold."""
    script = tmp_path / "forks.py"
    script.write_text(
        "import os, sys, torch, paceline\n"
        "worker = paceline.join()\n"
        "paceline.allreduce(torch.ones(1))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print('sum', paceline.allreduce(torch.ones(1), average=False).item())\n"
        "worker.close()\n"
    )
    done = launch(sys.executable, str(script), comm="gloo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sum 2.0") == 2


def test_a_shell_script_may_start_one_program_after_another(tmp_path):
    (tmp_path / "one.py").write_text(TWICE)
    script = tmp_path / "train.sh"
    script.write_text(f"{sys.executable} {tmp_path}/one.py && {sys.executable} {tmp_path}/one.py\n")
    done = launch("bash", str(script))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        sorted(line for line in done.stdout.splitlines() if line.startswith("turn")) == ["turn 0"] * 2 + ["turn 1"] * 2
    )


def test_a_rank_may_start_a_job_of_its_own(tmp_path):
    inner = tmp_path / "inner.py"
    inner.write_text(TWICE)
    outer = tmp_path / "outer.py"
    outer.write_text(
        "import subprocess, sys, paceline\n"
        "worker = paceline.join()\n"
        "if worker.first:\n"
        f"    argv = [sys.executable, '-m', 'paceline', 'run', '-np', '2', '--', sys.executable, {str(inner)!r}]\n"
        "    print(subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout)\n"
        "worker.close()\n"
    )
    done = launch(sys.executable, str(outer), launcher="forked")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "turn 0" in done.stdout
    assert "turn 1" in done.stdout
