"""Launcher slurm against a real Slurm of one node, which this module starts."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.slurm_here import slurm

pytestmark = [pytest.mark.root, pytest.mark.multi]
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def cluster():
    if shutil.which("slurmctld") is None or shutil.which("munged") is None:
        pytest.skip("no Slurm. try: apt-get install slurm-wlm munge")
    with slurm() as environ:
        yield {**environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def started(environ, folder, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "paceline", *words],
        cwd=folder,
        env={**environ, "PACELINE_RUNS": str(folder / "runs")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_run_is_submitted_and_returns_its_record(cluster, tmp_path):
    path = tmp_path / "r.json"
    words = ["run", "--launcher", "slurm(partition=main, time=5, options=--overcommit)", "-np", "2", "--model", "mlp"]
    words += ["--batch-size", "4", "--steps", "2", "--repeats", "2", "--warmup", "1", "--json", str(path)]
    process = started(cluster, tmp_path, *words)
    said, _ = process.communicate(timeout=150)
    assert process.returncode == 0, said
    assert re.search(r"submitted as job \d+ of Slurm", said)
    assert "Total img/sec on 2 CPU(s)" in said
    record = json.loads(path.read_text())
    assert (record["workers"], record["replicas"]["identical"]) == (2, True)
    assert "--launcher 'slurm(partition=main" in record["text"]


def test_a_cancelled_job_is_reported_as_such(cluster, tmp_path):
    words = ["run", "--launcher", "slurm(options=--overcommit)", "-np", "2", "--", "sleep", "90"]
    process = started(cluster, tmp_path, *words)
    first = process.stdout.readline()
    number = re.search(r"job (\d+)", first)[1]
    limit = time.monotonic() + 60
    while "RUNNING" not in asked(cluster, "squeue", "-h", "-j", number, "-o", "%T"):
        assert time.monotonic() < limit
        time.sleep(0.2)
    asked(cluster, "scancel", number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"job {number} of Slurm did not end by itself: somebody cancelled it" in " ".join(said.split())


SAVES = """
import os, pathlib, signal, sys, time
mark = pathlib.Path(sys.argv[1], "saved-" + os.environ["RANK"])
if mark.exists():
    print("continues", os.environ.get("SLURM_RESTART_COUNT"), flush=True)
    sys.exit()
def save(*_):
    mark.write_text("x")
    os._exit(1)
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[1], "up-" + os.environ["RANK"]).write_text("x")
time.sleep(120)
"""


def test_a_preempted_job_saves_and_is_queued_again(cluster, tmp_path):
    """Slurm signals a job like this 60 s before a preemption; the signal is what is tried here."""
    script = tmp_path / "train.py"
    script.write_text(SAVES)
    words = ["--launcher", "slurm(requeue=true, options=--overcommit)", "-np", "2", "--"]
    process = started(cluster, tmp_path, "run", *words, sys.executable, "-S", str(script), str(tmp_path))
    number = re.search(r"job (\d+)", process.stdout.readline())[1]
    limit = time.monotonic() + 60
    while len(list(tmp_path.glob("up-*"))) < 2:
        assert time.monotonic() < limit
        time.sleep(0.1)
    asked(cluster, "scancel", "--signal=TERM", "--batch", number)
    while "PENDING" not in asked(cluster, "squeue", "-h", "-j", number, "-o", "%T"):
        assert time.monotonic() < limit, asked(cluster, "scontrol", "show", "job", number)
        time.sleep(0.2)
    assert len(list(tmp_path.glob("saved-*"))) == 2, "every rank had the signal"
    # Slurm holds a requeued job back for two minutes.
    asked(cluster, "scontrol", "update", f"job={number}", "StartTime=now")
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 0, said
    assert len(re.findall(r"\[[01]\] continues 1", said)) == 2, said


def test_a_failure_inside_the_job_has_its_exit_code_and_text(cluster, tmp_path):
    words = ["run", "--launcher", "slurm(options=--overcommit)", "-np", "2", "--", sys.executable, "-c", "1 / 0"]
    process = started(cluster, tmp_path, *words)
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 1, said
    assert "ZeroDivisionError" in said
    assert re.search(r"rank \d \(\S+, pid \d+\) ended with exit code 1", " ".join(said.split()))


def test_a_script_under_srun_joins_by_itself(cluster):
    words = ["srun", "-n", "2", "--overcommit", sys.executable, "examples/train_my_model.py"]
    done = subprocess.run(words, cwd=ROOT, env=cluster, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 of 2, started by srun (SLURM_PROCID), ranks meet at 127.0.0.1:" in done.stderr
    parameters = re.findall(r"rank [01] of 2: parameters (\w+)", done.stdout)
    assert len(parameters) == 2
    assert parameters[0] == parameters[1]


def asked(environ, *words):
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=False).stdout


def test_without_slurm_the_launcher_says_so(tmp_path):
    environ = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    process = started(environ, tmp_path, "run", "--launcher", "slurm", "-np", "2", "--model", "mlp")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "there is no sbatch here" in said
