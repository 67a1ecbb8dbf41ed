"""`paceline run` with real processes: the record, the line that people parse, and what goes wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.measure.measure import measure
from paceline.run.run import Run
from tests.forked import paceline

ROOT = Path(__file__).parents[2]
QUICK = ["--steps", "3", "--repeats", "2", "--warmup", "1", "--batch-size", "8"]
pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("forks")]


def anew(*words):
    """Run a command and its workers in new processes."""
    command = [sys.executable, "-m", "paceline", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)


def record_of(tmp_path, *words, run=paceline):
    path = tmp_path / "r.json"
    done = run("run", *QUICK, *words, "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text()), done.stdout


def test_a_run_leaves_the_record_of_the_design(tmp_path):
    record, told = record_of(tmp_path, "-np", "3", "--model", "mlp", "--schedule", "wfbp", run=anew)
    assert re.search(r"^Total img/sec on 3 CPU\(s\): \d+\.\d \+- \d+\.\d$", told, re.M)
    assert (record["schema"], record["kind"], record["workers"], record["comm"]) == (1, "measured", 3, "shm")
    parts = dict(record["breakdown"])
    step = parts.pop("step")
    assert abs(sum(parts.values()) - step) <= 0.02 * step
    assert len(record["rate"]["per_worker"]) == 3
    assert sum(record["rate"]["per_worker"]) == pytest.approx(record["rate"]["total"]["mean"], rel=0.2)
    assert record["step"]["samples"] == 3 * 2 * 3
    assert len(record["loss"]) == 1 + 2 * 3
    assert record["text"].startswith("paceline run -np 3")
    arena = 4 * (670_730 + 6)  # gradients and one flag per tensor
    assert sum(record["plan"]["nbytes"]) == arena
    assert record["plan"]["chunks"] == 6
    assert sum(record["bytes"]["received_per_step"]) == 2 * 2 * arena
    assert record["bytes"]["sent_per_step"] == pytest.approx(
        [sum(c) for c in zip(*record["bytes"]["per_edge"], strict=True)]
    )
    assert all(peak > 50e6 for peak in record["resources"]["pss_peak"])
    events = [json.loads(line) for line in (tmp_path / record["events"]).read_text().splitlines()]
    assert {event[0] for event in events} == {0, 1, 2}
    kinds = [event[2] for event in events if event[0] == 0]
    assert kinds.count("begin") == 3
    assert kinds.count("leave") == kinds.count("arrived") + kinds.count("back") == 18


@pytest.mark.parametrize(
    "words",
    [
        ["--strategy", "ddp"],
        ["--strategy", "limit"],
        ["--comm", "gloo", "--strategy", "wfbp"],
        ["--precision", "bf16", "--memory-format", "channels_last", "--source", "fake(cpu)"],
        ["--use-fp16", "--variable-update", "horovod", "--fake-location", "cpu"],
        ["--strategy", "ddp", "--accumulate", "2", "--clip-norm", "1"],
        ["--compress", "cast(fp16)", "--accumulate", "2", "--clip-norm", "1", "--optimizer", "adamw(lr=0.01)"],
    ],
    ids=" ".join,
)
def test_every_way_to_train_runs(words, tmp_path):
    record, told = record_of(tmp_path, "-np", "2", "--model", "small_cnn", *words)
    assert "Total img/sec on 2 CPU(s)" in told
    assert record["verdict"] in ("steady", "unsteady")
    assert record["replicas"]["identical"] == ("limit" not in words)


def test_a_compressed_run_tells_bytes_and_seconds_of_coding(tmp_path):
    words = ["-np", "2", "--model", "mlp", "--compress", "feedback(topk(ratio=0.01))"]
    record, told = record_of(tmp_path, *words)
    arena, kept = 4 * (670_730 + 6), 8 * 6707 + 4 * 6
    assert record["bytes"]["before_compression_per_step"] == [arena, arena]
    assert record["bytes"]["after_compression_per_step"] == [kept, kept]
    assert record["bytes"]["received_per_step"] == [kept, kept]
    assert min(record["resources"]["encode_seconds_per_step"]) > 0
    assert min(record["resources"]["decode_seconds_per_step"]) > 0
    assert "2.7 MB -> 53.7 kB per worker and step, encode" in told
    assert record["replicas"]["identical"]


@pytest.mark.usefixtures("forked_workers")
def test_nothing_is_watched_if_nobody_asks():
    run = Run(workers=1, model="mlp", batch_size=4, steps=2, repeats=1, warmup=1, threads=3)
    record, events = measure(run, lambda *_: None, watched=0)
    assert events == [[]]
    assert record.rate["total"]["mean"] > 0
    assert record.environment["variables"]["OMP_NUM_THREADS"] == "3"


def test_the_published_words_mean_what_they_meant(tmp_path):
    record, _ = record_of(tmp_path, "dnn=mlp", "bs=8", "nworkers=2", "--dist-optimizer=horovod")
    assert (record["workers"], record["run"]["batch_size"], record["run"]["model"]) == (2, 8, "mlp")
    assert record["run"]["strategy"] == "horovod"


def test_epochs_walk_through_the_source_once_each(tmp_path):
    words = ["-np", "2", "--model", "mlp", "--source", "fake(cpu, samples=64)", "--epochs", "2"]
    path = tmp_path / "r.json"
    done = paceline("run", *words, "--batch-size", "8", "--warmup", "1", "--json", str(path))
    assert done.returncode == 0, done.stderr
    record = json.loads(path.read_text())
    assert record["step"]["samples"] == 2 * 2 * 4  # ranks x epochs x global batches
    assert len(record["rate"]["total"]["repeats"]) == 2


def test_the_loss_falls(tmp_path):
    words = ["-np", "2", "--model", "small_cnn", "--optimizer", "sgd(lr=0.05)", "--source", "fake(cpu)"]
    path = tmp_path / "r.json"
    done = paceline("run", *words, "--steps", "15", "--repeats", "2", "--batch-size", "32", "--json", str(path))
    assert done.returncode == 0, done.stderr
    loss = json.loads(path.read_text())["loss"]
    assert sum(loss[-5:]) < 0.8 * sum(loss[:5])


def test_a_nan_loss_is_reported_by_its_rank():
    done = paceline("run", *QUICK, "-np", "2", "--model", "tests.multi.own:nan_on_rank_one")
    assert done.returncode == 1
    assert "rank 1: the loss is nan at step 2" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("function", "complaint"),
    [("nothing_to_train", "no trainable parameter"), ("not_a_model", "int"), ("no_such", "no_such")],
)
def test_a_model_that_cannot_be_trained_is_refused_before_a_worker_starts(function, complaint):
    done = paceline("run", *QUICK, "-np", "2", "--model", f"tests.multi.own:{function}")
    assert done.returncode in (1, 2)
    assert "error: rank" not in done.stderr
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def started(*words):
    """A run in the background, once its workers train: the process and the workers' pids."""
    command = [sys.executable, "-m", "paceline", "run", "--model", "tests.multi.own:slow", "--steps", "400", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        pids = sorted(int(p) for p in children(process.pid) if "paceline.train.worker" in command_of(p))
        if len(pids) == 3 and all(threads_of(pid) > 1 for pid in pids):
            time.sleep(3)
            return process, pids
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate())


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def threads_of(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_kill_nine_of_one_worker_ends_the_run_within_five_seconds():
    before = set(os.listdir("/dev/shm"))
    process, pids = started("-np", "3")
    os.kill(pids[1], signal.SIGKILL)
    began = time.monotonic()
    _, told = process.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert process.returncode == 1
    assert f"(pid {pids[1]}) was killed by SIGKILL" in told, told
    assert re.search(r"error: rank \d ", told)
    assert not any(alive(pid) for pid in pids)
    assert set(os.listdir("/dev/shm")) <= before


def test_control_c_ends_the_run_and_leaves_nothing():
    process, pids = started("-np", "3")
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    process.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert process.returncode == 130
    assert not any(alive(pid) for pid in pids)
