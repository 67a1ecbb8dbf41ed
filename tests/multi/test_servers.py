"""Server processes under the real launcher."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.forked import paceline

ROOT = Path(__file__).parents[2]
DEDICATED = "ps(servers=1, colocated=false)"
pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("forks")]


def recorded(tmp_path, *words):
    path = tmp_path / "r.json"
    done = paceline("run", *words, "--json", path)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text())


COMMS = ["shm", pytest.param("gloo", marks=pytest.mark.slow)]


@pytest.mark.parametrize("comm", COMMS)
def test_a_run_with_servers_has_the_losses_of_all_reduce(comm, tmp_path):
    words = ["-np", 2, "--comm", comm, "--model", "mlp", "--batch-size", 4, "--steps", 3, "--repeats", 2]
    plain = recorded(tmp_path, *words)
    for axes in (["--exchange", "ps(servers=2)"], ["--rule", "server", "--exchange", DEDICATED]):
        served = recorded(tmp_path, *words, *axes)
        assert served["loss"] == pytest.approx(plain["loss"], rel=1e-5)
        assert served["replicas"]["identical"]


@pytest.mark.parametrize("comm", COMMS)
def test_counted_bytes_with_servers_are_the_declared_ones(comm, tmp_path):
    words = ["-np", 2, "--comm", comm, "--model", "mlp", "--batch-size", 4, "--steps", 3, "--repeats", 1]
    edges = recorded(tmp_path, *words, "--exchange", DEDICATED, "--schedule", "bsp")["bytes"]["per_edge"]
    model = 4 * (670_730 + 6)  # and a flag for each of six tensors
    assert edges == [[0, 0, model], [0, 0, model], [model, model, 0]]


def slow_run(tmp_path, staleness):
    words = ["-np", 3, "--model", "tests.multi.own:slow_on_rank_zero", "--batch-size", 2, "--steps", 12]
    words += ["--repeats", 1, "--warmup", 1, "--rule", f"server(staleness={staleness})", "--exchange", DEDICATED]
    return recorded(tmp_path, *words)["staleness"]


def test_with_a_slow_worker_nobody_gets_further_ahead_than_the_bound(tmp_path):
    found = slow_run(tmp_path, 2)
    assert found["bound"] == 2
    assert 1 <= found["largest_lead"] <= 2


@pytest.mark.slow
def test_without_a_bound_the_slow_worker_is_left_behind(tmp_path):
    """The control of the test above."""
    assert slow_run(tmp_path, "async")["largest_lead"] > 2


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["shm", "gloo"])
def test_async_converges_on_small_cnn(comm, tmp_path):
    words = ["-np", 3, "--comm", comm, "--model", "small_cnn", "--batch-size", 8, "--steps", 15, "--repeats", 2]
    words += ["--optimizer", "sgd(lr=0.05)", "--rule", "server(async)", "--exchange", DEDICATED]
    record = recorded(tmp_path, *words)
    assert sum(record["loss"][-5:]) < 0.7 * sum(record["loss"][:5])
    assert any("changes convergence" in note for note in record["notes"])


def test_a_killed_server_ends_the_job_and_is_named(tmp_path):
    command = [sys.executable, "-m", "paceline", "run", "-np", "2", "--exchange", DEDICATED]
    command += ["--model", "tests.multi.own:slow", "--batch-size", "2", "--steps", "200"]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    victim = _server_of(job.pid)
    time.sleep(1.0)
    os.kill(victim, signal.SIGKILL)
    killer = threading.Timer(60, job.kill)
    killer.start()
    began = time.monotonic()
    _, errors = job.communicate()
    killer.cancel()
    assert time.monotonic() - began < 5
    assert job.returncode == 1
    assert f"server 0 (pid {victim}) was killed by SIGKILL" in errors


def _server_of(launcher):
    """The child of the launcher that is rank 2, once it has started."""
    for _ in range(600):
        for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
            try:
                environ = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"RANK=2" in environ:
                return int(child)
        time.sleep(0.05)
    raise AssertionError("no server was started")
