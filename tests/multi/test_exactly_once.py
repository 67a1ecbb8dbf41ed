"""10,007 records in 13 unequal shards, in real processes: every sample once per epoch, in one sequence of samples.

Two ways in: `paceline run --epochs` from TFRecord shards of others, and `worker.batches` in a user's script. Uses are
judged by the final weights (a stand-in of a rank without samples must weigh nothing), the sequence by what every rank
has written down.
"""

import io
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from paceline.files.snapshot import Snapshot
from paceline.workload.tfrecord.example import encode
from paceline.workload.tfrecord.frames import write
from tests.multi.counting import EPOCHS, RECORDS, SHARDS

ROOT = Path(__file__).parents[2]
BATCH = 240
STEPS, SHORT = -(-RECORDS // BATCH), RECORDS % BATCH
pytestmark = [pytest.mark.multi, pytest.mark.slow]


def launched(folder, *words):
    environ = {**os.environ, "PACELINE_WATCHED": "0", "PACELINE_FLOPS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-m", "paceline", "run", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Shards as others write them, without an index: the label of each tiny picture is its number."""
    from PIL import Image

    stream, folder, first = io.BytesIO(), tmp_path_factory.mktemp("shards"), 0
    Image.new("RGB", (4, 4)).save(stream, "PNG")
    for number, count in enumerate(SHARDS):
        rows = ({"image/encoded": stream.getvalue(), "image/class/label": [first + k]} for k in range(count))
        with open(folder / f"train-{number:05d}-of-{len(SHARDS):05d}", "wb") as file:
            write(file, map(encode, rows))
        first += count
    return folder


@pytest.fixture(scope="module")
def trained(shards, tmp_path_factory):
    """Train with a number of workers in one of two ways; return the folder with logs and weights."""

    @cache
    def train(way, workers, *words):
        folder = tmp_path_factory.mktemp(f"{way}-{workers}")
        if way == "batches":
            script = [sys.executable, "-m", "tests.multi.counting", folder, BATCH, *words]
            launched(folder, "-np", workers, "--threads", 1, "--", *script)
            return folder
        source = f"tfrecord({shards}, size=4, classes={RECORDS}, first=0)"
        model = f"tests.multi.counting:table(log={folder}/ids)"
        launched(
            folder,
            *("-np", workers, "--threads", 1, "--epochs", EPOCHS, "--global-batch", BATCH, "--optimizer", "sgd(lr=1)"),
            *("--source", source, "--model", model, "--checkpoint", folder / "kept", "--runs", folder / "runs"),
        )
        return folder

    return train


def weights(folder):
    """The weights after every epoch."""
    saved = sorted(folder.glob("epoch-*.pt"))
    if saved:
        return [torch.load(path) for path in saved]
    kept = sorted((folder / "kept").glob("step-*"))
    return [Snapshot.load(path / "rank-0.snapshot").state["model"]["weight"] for path in kept]


def problems(folder):
    """Describe in words which samples of an epoch were lost or repeated."""
    before, found = torch.zeros(RECORDS, dtype=torch.float64), []
    for epoch, after in enumerate(weights(folder)):
        uses, before = before - after, after
        whole, short = (torch.isclose(uses * size, torch.ones_like(uses), rtol=1e-6) for size in (BATCH, SHORT))
        if (short.sum(), whole.sum()) != (SHORT, RECORDS - SHORT):
            found.append(
                f"epoch {epoch}: {int((uses == 0).sum())} samples were lost, {int(whole.sum())} were used once in "
                f"whole batches, {int(short.sum())} in the short one"
            )
    return found


def sequence(folder, workers):
    """The samples of every update, in the order of ranks. Stand-ins repeat samples of the same update.

    `run` tries the model on one sample before training, and makes three steps for events after it.
    """
    ranks = [(folder / f"ids.{rank}").read_text().splitlines() for rank in range(workers)]
    tried = int((folder / "kept").exists())
    ranks = [lines[tried : tried + EPOCHS * STEPS] for lines in ranks]
    return [list(dict.fromkeys(word for line in lines for word in line.split())) for lines in zip(*ranks, strict=True)]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("way", ["run", "batches"])
def test_every_one_of_10007_records_in_13_shards_is_used_once_per_epoch(trained, way, workers):
    assert (len(SHARDS), RECORDS) == (13, 10_007)
    folder = trained(way, workers)
    assert len(weights(folder)) == EPOCHS
    assert problems(folder) == []


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("way", ["run", "batches"])
def test_the_sequence_is_that_of_one_worker(trained, way, workers):
    alone = sequence(trained(way, 1), 1)
    assert sequence(trained(way, workers), workers) == alone
    assert len(alone) == EPOCHS * STEPS
    first, second = ([word for step in alone[k * STEPS : (k + 1) * STEPS] for word in step] for k in range(EPOCHS))
    assert sorted(map(int, first)) == sorted(map(int, second)) == list(range(RECORDS))
    assert first != second


def test_samples_that_a_loop_leaves_out_are_seen(trained):
    """The check above can fail: with drop_last, the short batch is not trained on."""
    assert [problem.split(":")[1].split(",")[0] for problem in problems(trained("batches", 2, "drop"))] == [
        f" {SHORT} samples were lost"
    ] * EPOCHS
