"""Windows among real processes: mass is kept under any interleaving, and who dies with a lock is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import paceline

HERE = Path(__file__).parent
pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("forks")]


def mass(tmp_path, comm, seed, mode="locked", size=4):
    out = tmp_path / f"{seed}.json"
    launch = ("run", "-np", size, "--comm", comm, "--deadline", 60, "--", sys.executable)
    done = paceline(*launch, HERE / "mass.py", out, seed, mode)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize(
    ("comm", "seed"),
    [
        ("shm", 1),
        pytest.param("gloo", 1, marks=pytest.mark.slow),
        *(pytest.param("shm", k, marks=pytest.mark.slow) for k in (2, 3)),
    ],
)
def test_mass_is_conserved_under_random_interleavings(comm, seed, tmp_path):
    found = mass(tmp_path, comm, seed)
    # relative to all there is; every number went through about 400 multiplications and additions of 1e-16 each
    assert found["lost"] <= 1e-12
    assert found["torn"] == 0, "x and p came apart"
    assert sum(found["p"]) == pytest.approx(4, abs=1e-11)
    assert found["apart"] < 1e-9, "x / p is not the mean"


@pytest.mark.parametrize("mode", ["unlocked", pytest.param("put", marks=pytest.mark.slow)])
def test_the_count_of_mass_can_fail(mode, tmp_path):
    """Negative control: without locks, or with put where accumulate belongs, mass is lost."""
    assert mass(tmp_path, "shm", 1, mode)["lost"] > 1e-9


def ends(tmp_path, how):
    """What rank 0 said, line by line, and the process id of rank 1."""
    environ = {**os.environ, "WORLD_SIZE": "2", "PACELINE_STORE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "holder.py"), how]
    ranks = [
        subprocess.Popen(command, env={**environ, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        return ranks[0].communicate(timeout=90)[0].splitlines(), ranks[1].pid
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def test_a_rank_that_dies_with_a_lock_is_named(tmp_path):
    said, pid = ends(tmp_path, "dies")
    assert said == [
        f"PeerLost; 1; rank 1 (pid {pid}) died while it held {what}: it may be half written"
        for what in ("the mutex of rank 0", "rank 0's buffer for rank 1")
    ]


def test_a_rank_that_dies_after_it_released_its_locks_is_no_trouble(tmp_path):
    """Negative control."""
    assert ends(tmp_path, "releases")[0] == ["taken", "taken"]
