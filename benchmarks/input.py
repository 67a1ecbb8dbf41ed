"""How fast samples come in: each source alone and in training, beside torch's DataLoader and the `tfrecord` package.

    parse     records to fields with both checksums verified / the `tfrecord` package, which verifies none
    store     JPEG shards in an S3 server on loopback / the same shards on disk, decoding included
    ready     finished 224 x 224 batches of 32 through queue and zmq / DataLoader with one worker
    training  a step of replayed compute of 100 ms with a source / with one constant batch

Both sides of a ratio take turns, round by round, in this process; intervals of 95 % are over rounds. Two cores are
shared by producers, decoders and the loop.

    pip install tfrecord
    python benchmarks/input.py [--quick] [--only parse,store,ready,training] [--json F]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import show, verdict

from paceline.measure.stats.intervals import mean_interval
from paceline.types import View, Workload
from paceline.workload.sources import MENU

NO_WORKLOAD = Workload(None, None, None)
COMPUTE = 0.100  # seconds
READY = "fake(cpu, samples=64)"
SETTINGS = {"model": "resnet18", "classes": None, "image_size": 224, "sequence_length": None, "seed": 0}
Rate = Callable[[], float]
Row = dict[str, Any]


def compare(name: str, ours: Rate, peer: Rate, rounds: int, target: float) -> Row:
    """Take turns, the first one in every second round is the peer; return the ratio of rates."""
    ours(), peer()  # warm caches
    ratios, rates = [], []
    for number in range(rounds):
        if number % 2:
            b, a = peer(), ours()
        else:
            a, b = ours(), peer()
        ratios.append(a / b)
        rates.append((a, b))
    interval = mean_interval(ratios)
    means = [sum(column) / rounds for column in zip(*rates, strict=True)]
    return {
        "name": name,
        "ratio": interval.centre,
        "low": interval.low,
        "high": interval.high,
        "target": target,
        "ours": means[0],
        "peer": means[1],
    }


def seconds_of(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


# parse ------------------------------------------------------------------------------------------------


def parse(folder: Path, rounds: int, quick: bool) -> Iterator[Row]:
    from tfrecord.reader import tfrecord_loader

    from paceline.workload.tfrecord.example import decode, encode
    from paceline.workload.tfrecord.frames import scan, write

    for size, target in ((300, 5.0), (3_000, 5.0), (110_000, 0.95)):
        count = max(100, (2 if quick else 20) * 1_000_000 // size)
        path = folder / f"{size}.tfrecord"
        with open(path, "wb") as stream:
            write(
                stream,
                (encode({"image/encoded": random.randbytes(size), "image/class/label": [k]}) for k in range(count)),
            )

        def ours(path: Path = path, count: int = count) -> float:
            damages: list[Any] = []
            return count / seconds_of(lambda: [decode(data) for _, data in scan(path, damages)])

        def peer(path: Path = path, count: int = count) -> float:
            return count / seconds_of(lambda: list(tfrecord_loader(str(path), None)))

        yield compare(f"parse, {size:,} bytes / tfrecord package", ours, peer, rounds, target)


# store ------------------------------------------------------------------------------------------------


def jpegs(folder: Path, shards: int, each: int) -> None:
    """Write shards as ImageNet has them: JPEG images of about 110 kB."""
    from PIL import Image

    from paceline.workload.tfrecord.example import encode
    from paceline.workload.tfrecord.frames import write

    stream = io.BytesIO()
    Image.effect_noise((400, 350), 80).convert("RGB").save(stream, "JPEG", quality=90)
    folder.mkdir()
    for shard in range(shards):
        with open(folder / f"train-{shard:05d}-of-{shards:05d}", "wb") as file:
            row = {"image/encoded": stream.getvalue(), "image/class/label": [1]}
            write(file, (encode(row) for _ in range(each)))


def epoch_rate(source: Any) -> float:
    """Return samples per second over an epoch, without the look at the next one."""
    order, samples = source.order(8, 0), source.samples_of(NO_WORKLOAD)

    def epoch() -> None:
        for step in range(order.steps):
            if step + 8 < order.steps:
                samples.expect(order.ids(0, step + 8))
            samples(order.ids(0, step))

    return order.samples / seconds_of(epoch)


def store(folder: Path, rounds: int, quick: bool) -> Iterator[Row]:
    from paceline.workload.objects.serve import Server

    jpegs(folder / "images", 8, 8 if quick else 48)
    with Server(folder / "images") as server:
        os.environ.update(server.environment)
        remote, local = MENU.make(f"tfrecord({server.address})"), MENU.make(f"tfrecord({folder / 'images'})")
        row = compare(
            "store, S3 on loopback / disk", lambda: epoch_rate(remote), lambda: epoch_rate(local), rounds, 0.8
        )
        remote._place.blocks.close()
        for name in server.environment:
            del os.environ[name]
    yield row


# ready ------------------------------------------------------------------------------------------------


class Ready:
    """Finished images for DataLoader, whose worker only has to hand them over."""

    def __init__(self) -> None:
        import torch

        self.batch = torch.randn(32, 3, 224, 224), torch.arange(32)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> Any:
        return self.batch


def ready_dataset() -> Any:
    """Return single samples for `queue`, one batch over and over."""
    from torch.utils.data import DataLoader

    images, labels = Ready().batch

    class Rows:
        def __len__(self) -> int:
            return 3200

        def __getitem__(self, number: int) -> int:
            return number

    return DataLoader(Rows(), collate_fn=lambda rows: (images, labels))


def taking(take: Callable[[], Any], count: int) -> float:
    def all_of_them() -> None:
        for _ in range(count):
            take()

    return count / seconds_of(all_of_them)


def ready(folder: Path, rounds: int, quick: bool) -> Iterator[Row]:
    from torch.utils.data import DataLoader

    count = 8 if quick else 40
    loader = iter(DataLoader(Ready(), batch_size=None, num_workers=1))
    source = "dataset(input:ready_dataset)"
    for name, opened in (("queue", queue_stream), ("zmq", zmq_stream)):
        stream, close = opened(source, folder)
        yield compare(
            f"ready, {name} / DataLoader",
            lambda s=stream: taking(s.take, count),
            lambda: taking(loader.__next__, count),
            rounds,
            2.0,
        )
        close()


def queue_stream(source: str, folder: Path) -> tuple[Any, Callable[[], None]]:
    stream = MENU.make(f"queue({source})").open(View(0, 1), {**SETTINGS, "batch": 32})
    return stream, stream.close


def zmq_stream(source: str, folder: Path) -> tuple[Any, Callable[[], None]]:
    from paceline.workload.stream.pipe import TOKEN, Pull

    token = secrets.token_urlsafe(24)
    address = f"ipc://{folder}/pipe"
    words = ["data", "produce", source, address, "--batch-size", "32", "--model", "resnet18"]
    producer = subprocess.Popen(
        [sys.executable, "-m", "paceline", *words], env={**os.environ, TOKEN: token}, stdout=subprocess.DEVNULL
    )
    stream = Pull(address, token, 120)

    def close() -> None:
        stream.close()
        producer.kill()
        producer.wait()

    return stream, close


# training ---------------------------------------------------------------------------------------------


def training(folder: Path, rounds: int, quick: bool) -> Iterator[Row]:
    """Compare the rate of steps with a source and with one constant batch; the ratio may be at least 0.98."""
    from paceline.workload.feed import Feed

    steps = 3 if quick else 20
    if not (folder / "images").exists():
        jpegs(folder / "images", 8, 8 if quick else 48)

    def rate(take: Callable[[], Any]) -> float:
        def loop() -> None:
            for _ in range(steps):
                take()
                time.sleep(COMPUTE)

        return steps / seconds_of(loop)

    jpeg = MENU.make(f"tfrecord({folder / 'images'})")
    feed = Feed(jpeg.samples_of(NO_WORKLOAD), jpeg.order(8, 0), View(0, 1))
    yield compare(
        "training, JPEG shards, batch 8 / constant", lambda: rate(feed.__next__), lambda: rate(int), rounds, 0.98
    )
    feed.close()
    for name, opened in (("queue", queue_stream), ("zmq", zmq_stream)):
        stream, close = opened("dataset(input:ready_dataset)", folder)
        take = stream.take
        yield compare(f"training, {name}, batch 32 / constant", lambda t=take: rate(t), lambda: rate(int), rounds, 0.98)
        close()


PARTS = {"parse": parse, "store": store, "ready": ready, "training": training}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small files and three rounds: whether it works at all")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    here = str(Path(__file__).parent)
    sys.path.insert(0, here)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    rows = []
    with tempfile.TemporaryDirectory(prefix="paceline-input-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for name in options.only.split(","):
            for row in PARTS[name](Path(folder), 3 if options.quick else 15, options.quick):
                print(f"{row['name']}: {row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})", flush=True)
                rows.append(row)
    head = ["what", "ratio", "95 %", "ours /s", "peer /s"]
    cells = [
        [r["name"], f"{r['ratio']:.2f}", f"{r['low']:.2f} to {r['high']:.2f}", f"{r['ours']:.1f}", f"{r['peer']:.1f}"]
        for r in rows
    ]
    show(head, cells)
    for row in rows:  # what is at most 2 % of a step is judged by its worse end
        print(verdict(row["name"], row["low"] if row["target"] == 0.98 else row["ratio"], row["target"]))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
