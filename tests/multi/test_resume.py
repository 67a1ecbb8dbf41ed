"""kill -9 in the middle of training, then --resume: no sample repeated or lost, and the same bits in the end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from paceline.files.snapshot import Snapshot

ROOT = Path(__file__).parents[2]
SAMPLES, BATCH, EPOCHS = 92, 8, 3
pytestmark = pytest.mark.multi


AXES = {
    "allreduce": ("--strategy", "allreduce"),
    "neighbor": ("--strategy", "neighbor_allreduce"),
    "topk": ("--compress", "feedback(topk(ratio=0.1))"),
}


def command_of(model, axes):
    def command(folder, *words):
        return [
            *(sys.executable, "-m", "paceline", "run", "-np", "2", "--epochs", str(EPOCHS)),
            *("--global-batch", str(BATCH), "--source", f"fake(cpu, samples={SAMPLES})"),
            *("--model", f"tests.multi.resuming:{model}(log={folder}/ids)"),
            *("--checkpoint", f"{folder}/kept", "--every", "5", "--runs", f"{folder}/runs"),
            *(*AXES[axes], *words),
        ]

    return command


def end_of(folder):
    (last,) = sorted((folder / "kept").glob("step-*"))[-1:]
    return [Snapshot.load(last / f"rank-{rank}.snapshot").state for rank in range(2)]


def history(folder):
    """The ids of every update of both ranks."""
    ranks = [(folder / f"ids.{rank}").read_text().splitlines() for rank in range(2)]
    return [sorted(int(word) for line in lines for word in line.split()) for lines in zip(*ranks, strict=False)]


@pytest.fixture
def environ():
    return {**os.environ, "PACELINE_WATCHED": "0", "PACELINE_FLOPS": "1"}


def killed_and_resumed(tmp_path, environ, command, latest):
    """Train without a stop, then with kill -9 after the first checkpoint. Judge the ids, and return both folders."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    done = subprocess.run(command(whole), cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    job = subprocess.Popen(
        command(cut),
        cwd=ROOT,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    limit = time.monotonic() + 100
    while not (cut / "kept" / latest).exists() and job.poll() is None and time.monotonic() < limit:
        time.sleep(0.002)
    job.send_signal(signal.SIGKILL)  # its workers end when they notice that nobody launched them
    job.wait()
    wait_for_workers(cut)
    before = history(cut)
    for rank in range(2):
        (cut / f"ids.{rank}").unlink()
    again = command(cut, "--resume")
    done = subprocess.run(again, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    start = int(done.stdout.partition("resumed from step ")[2].split(",")[0])
    assert start >= 5
    # the history that led to the final weights: what came before the checkpoint, then what came after it
    led = before[:start] + history(cut)
    assert led == history(whole)
    steps = -(-SAMPLES // BATCH)
    for epoch in range(EPOCHS):
        used = [number for step in led[epoch * steps : (epoch + 1) * steps] for number in step]
        assert sorted(used) == list(range(SAMPLES))
    return whole, cut


SLOW = [
    pytest.param(model, axes, marks=pytest.mark.slow)
    for model in ("network", "pictures")
    for axes in AXES
    if (model, axes) != ("network", "topk")
]


@pytest.mark.parametrize(("model", "axes"), [("network", "topk"), *SLOW])
def test_a_killed_run_resumes_as_if_nothing_had_happened(tmp_path, environ, model, axes):
    """The model `network` has BatchNorm and dropout, `pictures` is small_cnn."""
    whole, cut = killed_and_resumed(tmp_path, environ, command_of(model, axes), "latest.json")
    for a, b in zip(end_of(whole), end_of(cut), strict=True):
        assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
        assert torch.equal(a["random"], b["random"])


@pytest.mark.slow
@pytest.mark.parametrize("loaders", [0, 2])
@pytest.mark.parametrize("axes", AXES)
def test_a_killed_script_goes_on_as_if_nothing_had_happened(tmp_path, environ, axes, loaders):
    """Three networks at once: small_cnn, one with BatchNorm, one with dropout."""

    def script(folder, *_):
        launcher = (sys.executable, "-m", "paceline", "run", "-np", "2", *AXES[axes])
        return [*launcher, "--", sys.executable, "-m", "tests.multi.killed", str(folder), str(loaders)]

    whole, cut = killed_and_resumed(tmp_path, environ, script, "latest")
    for rank in range(2):
        a, b = (Snapshot.load(next(f.glob(f"end/step-*/rank-{rank}.snapshot"))).state for f in (whole, cut))
        for part in ("model", "buffers"):
            assert (a[part] is None) == (b[part] is None)
            assert all(torch.equal(value, b[part][name]) for name, value in (a[part] or {}).items())
        assert torch.equal(a["extra"]["random"], b["extra"]["random"])


def wait_for_workers(folder):
    """Until no process of this job is left."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit and any(map(is_of(folder), Path("/proc").glob("[0-9]*/environ"))):
        time.sleep(0.05)


def is_of(folder):
    def check(path):
        try:
            return str(folder).encode() in path.with_name("cmdline").read_bytes() + path.read_bytes()
        except OSError:
            return False

    return check
