"""Races with real processes: a user's script, and a race that is killed and started again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.measure.record.record import read
from paceline.race.script import measure_script
from paceline.run.run import Run
from tests import forked

ROOT = Path(__file__).parents[2]
SCRIPT = [sys.executable, str(ROOT / "examples" / "train_my_model.py")]
# The script, with what a rank prints in a file of its own.
KEEPING = """
import contextlib, os, runpy, sys
with open(sys.argv.pop(2) + os.environ["RANK"], "w") as told, contextlib.redirect_stdout(told):
    runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
pytestmark = pytest.mark.multi


def test_a_script_is_measured_by_the_wrapper():
    record, _ = measure_script(SCRIPT, Run(workers=2, model="mlp", strategy="wfbp", threads=1))
    assert (record.workers, record.unit, record.comm) == (2, "sample", "shm")
    assert record.plan["chunks"] == 4  # the strategy of the race won over the script's own
    kept, dropped = len(record.series["warmup"]) + len(record.series["seconds"]), record.series["dropped_blocks"]
    assert kept + 15 * dropped == 80  # five to warm up, and five blocks, of which those before it was steady go
    assert record.run.batch_size == 32
    assert record.text.startswith("paceline run -np 2 --strategy wfbp --threads 1 -- ")
    assert record.text.endswith("train_my_model.py")
    parts = dict(record.breakdown)
    step = parts.pop("step")
    assert sum(parts.values()) == pytest.approx(step, rel=0.02)
    assert min(parts[name] for name in ("data", "forward", "backward", "update")) > 0


@pytest.mark.usefixtures("forks")
def test_a_script_that_is_launched_leaves_a_record_and_can_be_started_again(tmp_path):
    words = ["run", "-np", 2, "--strategy", "ddp", "--json", tmp_path / "r.json", "--runs", tmp_path / "runs"]
    done = forked.paceline(*words, "--", sys.executable, SCRIPT[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"record: {tmp_path / 'r.json'}" in done.stderr
    assert "record" not in done.stdout
    record = read(tmp_path / "r.json")
    assert (record.run.strategy, record.comm, record.unit) == ("ddp", "gloo", "sample")
    assert record.text == f"paceline run -np 2 --strategy ddp -- {sys.executable} {SCRIPT[1]}"
    assert min(record.breakdown[name] for name in ("data", "forward", "backward", "update")) > 0
    done = forked.paceline("rerun", tmp_path / "r.json", "--runs", tmp_path / "again")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "A / B" in done.stdout
    [again] = (tmp_path / "again").glob("*.json")
    assert read(again).run == record.run


@pytest.mark.slow
@pytest.mark.parametrize("reference", ["ddp", "limit"])
def test_a_script_is_raced_against_references(reference, tmp_path):
    script = [sys.executable, "-c", KEEPING, SCRIPT[1], f"{tmp_path}/rank-"]
    record, _ = measure_script(script, Run(workers=2, model="mlp", strategy=reference, threads=1))
    assert record.comm == ("gloo" if reference == "ddp" else "shm")
    assert record.rate["total"]["mean"] > 0
    assert record.notes[0].startswith(reference)
    checksums = {path.read_text().split()[-1] for path in tmp_path.iterdir()}
    assert len(checksums) == (1 if reference == "ddp" else 2)


@pytest.mark.slow
def test_a_real_race_that_is_killed_goes_on_where_it_was(tmp_path):
    words = ["race", "--model", "mlp", "--rounds", "1", "--steps", "2", "--repeats", "2", "--warmup", "1"]
    command = [sys.executable, "-m", "paceline", *words, "--runs", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    limit = time.monotonic() + 90
    while not (list(tmp_path.glob("*/*.json")) and list(tmp_path.glob("*/*.started"))):
        assert time.monotonic() < limit
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    [finished] = tmp_path.glob("*/*.json")
    before = finished.read_bytes()
    killed = list(tmp_path.glob("*/*.started"))
    assert len(killed) == 4  # limit, ddp, allreduce and wfbp were taking turns

    again = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=150)
    assert again.returncode == 0, again.stderr
    assert f"going on with {finished.parent}" in again.stdout
    assert len(again.stderr.splitlines()) == 1, again.stderr  # of two starts, one was finished and one killed
    assert len(list(tmp_path.glob("*/*.json"))) == 5
    assert not any(path.exists() for path in killed)
    assert finished.read_bytes() == before
