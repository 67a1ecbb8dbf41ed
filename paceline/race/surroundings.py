"""The surroundings of a run of a published table: JPEG shards, an S3 server for them, or a producer of batches.

    STORE     tfrecord(s3://...)    the shards behind `rclone serve s3` on loopback
    disk()    tfrecord(FOLDER)      the same shards in the cache folder
    ZMQ       zmq(tcp://...)        `paceline data produce` in a process of its own

A run without such a source needs nothing.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.errors import MissingPackage
from paceline.run.run import Run

SIDE, SHARDS, EACH = 64, 8, 64  # pixels of an image, files, images in each
BUCKET = "paceline-images"
STORE = f"tfrecord(s3://{BUCKET}, size={SIDE})"
ADDRESS = "tcp://127.0.0.1:47555"
ZMQ = f"zmq({ADDRESS})"
DATASET = "dataset(paceline.race.surroundings:ready_images)"


def folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "paceline" / "reproduce" / BUCKET


def disk() -> str:
    return f"tfrecord('{folder()}', size={SIDE})"


def alone(run: Run) -> Run:
    """Return the run with samples that need no surroundings, to check everything else of it."""
    return run.with_(source="fake(cpu)") if run.source in (STORE, disk(), ZMQ) else run


@contextmanager
def beside(run: Run) -> Iterator[None]:
    """Start the surroundings of a run, and end them after it."""
    if run.source in (STORE, disk()):
        make_shards()
    if run.source == STORE:
        from paceline.workload.objects.serve import Server

        with Server(folder()) as server, _variables(server.environment):
            yield
    elif run.source == ZMQ:
        with _producer(run):
            yield
    else:
        yield


def ready_images() -> Any:
    """Return a data set of finished images, as a user's own function would."""
    import torch
    from torch.utils.data import TensorDataset

    dice = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(512, 3, SIDE, SIDE, generator=dice), torch.arange(512) % 1000)


def make_shards() -> None:
    """Write JPEG images as ImageNet has them, unless they are there: noise, so that none is easier to decode."""
    if folder().is_dir():
        return
    from paceline.workload.tfrecord.example import encode
    from paceline.workload.tfrecord.frames import write

    folder().parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder().parent))
    try:
        for shard in range(SHARDS):
            rows = ({"image/encoded": _jpeg(), "image/class/label": [1 + 17 * k % 1000]} for k in range(EACH))
            with open(made / f"train-{shard:05d}-of-{SHARDS:05d}", "xb") as stream:
                write(stream, map(encode, rows))
        made.chmod(0o755)
        made.rename(folder())
    except OSError:
        if not folder().is_dir():  # else another process was first
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _jpeg() -> bytes:
    try:
        from PIL import Image
    except ImportError:
        raise MissingPackage("images for a published table", package="pillow", extra="images") from None
    stream = io.BytesIO()
    Image.effect_noise((2 * SIDE, 2 * SIDE), 80).convert("RGB").save(stream, "JPEG", quality=90)
    return stream.getvalue()


@contextmanager
def _producer(run: Run) -> Iterator[None]:
    from paceline.workload.stream.pipe import TOKEN

    token = secrets.token_urlsafe(24)
    words = ["data", "produce", DATASET, ADDRESS, "--batch-size", str(run.per_worker)]
    producer = subprocess.Popen(
        [sys.executable, "-m", "paceline", *words],
        env={**os.environ, TOKEN: token, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    try:
        with _variables({TOKEN: token}):
            yield
    finally:
        producer.kill()
        producer.wait()


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
