"""How fast samples come in: each source alone and in training, beside torch's DataLoader and the `tfrecord` package.

    parse     records to fields with both checksums verified / the `tfrecord` package, which verifies none
    store     JPEG shards in an S3 server on loopback / the same shards on disk, decoding included
    recovery  samples from S3 2 to 4 seconds after 30 % of requests have stopped failing / before
    ready     finished 224 x 224 batches of 32 through queue and zmq / DataLoader with one worker, on the same function
    training  a step of replayed compute of 100 ms with a source / with one constant batch

Both sides of a ratio take turns, round by round, in this process; intervals of 95 % are over rounds. Two cores are
shared by servers, producers, decoders and the loop.

    pip install tfrecord
    python benchmarks/input.py [--quick] [--only parse,store,recovery,ready,training] [--json F]

It takes about eight minutes. With --json, parts that F has already are not measured again.
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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from harness import show, verdict

from paceline.cluster.seats import KEEP_MEMORY
from paceline.measure.stats.intervals import mean_interval
from paceline.types import View, Workload
from paceline.workload.sources import MENU

NO_WORKLOAD = Workload(None, None, None)
COMPUTE = 0.100  # seconds
WITHOUT_STALL = 0.98
AHEAD = 8  # batches that a stream can hold
SETTINGS = {"model": "resnet18", "classes": None, "image_size": 224, "sequence_length": None, "seed": 0}
Rate = Callable[[], float]
Row = dict[str, Any]


def compare(name: str, ours: Rate, peer: Rate, rounds: int, target: float | None) -> Row:
    """Take turns, the first one in every second round is the peer; return the ratio of rates."""
    ours(), peer()  # warm caches
    pairs = []
    for number in range(rounds):
        if number % 2:
            b, a = peer(), ours()
        else:
            a, b = ours(), peer()
        pairs.append((a, b))
    return row_of(name, pairs, target)


def row_of(name: str, pairs: Sequence[tuple[float, float]], target: float | None) -> Row:
    """Return the ratio of rates with its interval over rounds, and the mean of both rates."""
    interval = mean_interval([a / b for a, b in pairs])
    means = [sum(column) / len(pairs) for column in zip(*pairs, strict=True)]
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

SIZES = ((300, False, 5.0), (3_000, False, 5.0), (3_000, True, 5.0), (110_000, False, 0.95))  # bytes, whether they vary


def parse(folder: Path, rounds: int, quick: bool) -> Iterator[Row]:
    from tfrecord.reader import tfrecord_loader

    from paceline.workload.tfrecord.alike import Alike
    from paceline.workload.tfrecord.example import encode
    from paceline.workload.tfrecord.frames import scan_blocks, write

    consume, dice = deque[Any](maxlen=0).extend, random.Random(0)
    for size, varies, target in SIZES:
        count = max(100, (2 if quick else 20) * 1_000_000 // size)
        path = folder / f"{size}-{varies}.tfrecord"
        with open(path, "wb") as stream:
            lengths = (dice.randrange(size // 2, size) if varies else size for _ in range(count))
            images = ({"image/encoded": dice.randbytes(n), "image/class/label": [n % 1000]} for n in lengths)
            write(stream, map(encode, images))

        def ours(path: Path = path, count: int = count) -> float:
            damages: list[Any] = []
            decode = Alike()
            return count / seconds_of(
                lambda: consume(decode([data for _, data in found]) for found in scan_blocks(path, damages))
            )

        def peer(path: Path = path, count: int = count) -> float:
            return count / seconds_of(lambda: consume(tfrecord_loader(str(path), None)))

        name = f"{size // 2:,} to {size:,}" if varies else f"{size:,}"
        yield compare(f"parse, {name} bytes / tfrecord package", ours, peer, rounds, target)


# store ------------------------------------------------------------------------------------------------


def jpegs(folder: Path, quick: bool) -> Path:
    """Write shards as ImageNet has them, JPEG images of about 110 kB, unless they are there already."""
    from PIL import Image

    from paceline.workload.tfrecord.example import encode
    from paceline.workload.tfrecord.frames import write

    if folder.exists():
        return folder
    stream = io.BytesIO()
    Image.effect_noise((400, 350), 80).convert("RGB").save(stream, "JPEG", quality=90)
    folder.mkdir()
    for shard in range(8):
        with open(folder / f"train-{shard:05d}-of-00008", "wb") as file:
            row = {"image/encoded": stream.getvalue(), "image/class/label": [1]}
            write(file, (encode(row) for _ in range(8 if quick else 48)))
    return folder


class Served:
    """A folder behind `paceline data serve`, in processes of its own; its variables are set in this process."""

    def __init__(self, folder: Path) -> None:
        words = [sys.executable, "-m", "paceline", "data", "serve", str(folder)]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._names = []
        for line in self._process.stdout:
            if line.startswith("#"):
                break
            name, _, value = line.removeprefix("export ").strip().partition("=")
            os.environ[name] = value
            self._names.append(name)
        self.source = f"tfrecord(s3://{folder.name})"

    def close(self) -> None:
        self._process.terminate()  # not SIGINT: a shell that started this in the background has it ignored
        self._process.wait()
        for name in self._names:
            del os.environ[name]


def epoch_rate(source: Any) -> float:
    """Return samples per second over an epoch, made by the thread of a feed as in training."""
    from paceline.workload.feed import Feed

    order = source.order(8, 0)
    feed = Feed(source.samples_of(NO_WORKLOAD), order, View(0, 1))
    try:
        return float(order.samples / seconds_of(lambda: [next(feed) for _ in range(order.steps)]))
    finally:
        feed.close()


def store(folder: Path, rounds: int, quick: bool) -> Iterator[Row]:
    shards = jpegs(folder / "images", quick)
    served = Served(shards)
    remote, local = MENU.make(served.source), MENU.make(f"tfrecord({shards})")
    yield compare("store, S3 on loopback / disk", lambda: epoch_rate(remote), lambda: epoch_rate(local), rounds, 0.8)
    remote._place.blocks.close()
    served.close()


# recovery ---------------------------------------------------------------------------------------------


class Noise:
    """Samples of 64 KiB that need no decoding."""

    def __len__(self) -> int:
        return 1024

    def __call__(self, ids: Any) -> Any:
        import torch

        return torch.randint(0, 256, (len(ids), 1 << 16), dtype=torch.uint8), ids % 10


def recovery(folder: Path, rounds: int, quick: bool) -> Iterator[Row]:
    from paceline.workload.feed import Feed
    from paceline.workload.objects.serve import Server
    from paceline.workload.tfrecord.pack import pack

    pack(Noise(), None, folder / "noise", 256, lambda done, count: None)
    with Server(folder / "noise") as server:
        os.environ.update(server.environment)
        source = MENU.make(f"tfrecord({server.address}, window=64)")
        feed = Feed(source.samples_of(NO_WORKLOAD), source.order(8, 0), View(0, 1))

        def rate(seconds: float) -> float:
            began, batches = time.perf_counter(), 0
            while time.perf_counter() < began + seconds:
                next(feed)
                batches += 1
            return 8 * batches / (time.perf_counter() - began)

        rate(1.0)
        pairs, during = [], []
        for _ in range(3 if quick else 8):
            before = rate(2.0)
            server.proxy.faults = 0.3
            during.append(rate(3.0) / before)
            server.proxy.faults = 0.0
            rate(2.0)  # a pause before a retry is at most 2 s
            pairs.append((rate(2.0), before))
        feed.close()
        source._place.blocks.close()
        for name in server.environment:
            del os.environ[name]
    share = mean_interval(during)
    print(f"while requests failed: {share.centre:.2f} ({share.low:.2f} to {share.high:.2f})", flush=True)
    yield row_of("recovery, S3 after faults / before", pairs, 0.9)


# ready ------------------------------------------------------------------------------------------------


def ready_loader(workers: int = 0, collate: Callable[[Any], Any] | None = None) -> Any:
    """Return a DataLoader of finished batches: the peer, and what `dataset(...)` takes samples and collate_fn of.

    The fair peer has to hand over what our producers hand over: a batch of new tensors that a function of the user has
    just made (`finished`). So both sides call the same function on the same ids. A loader whose worker returns one
    and the same tensor again and again shares its memory once, and copies nothing from then on. One that only stacks
    samples with torch's own default_collate writes into shared memory directly, which no function of a user does; it
    is shown beside, without a target.
    """
    from torch.utils.data import DataLoader, RandomSampler

    data: Any = range(IMAGES) if collate is None else ready_samples()
    # an epoch of the sampler is longer than this benchmark
    sampler = RandomSampler(data, replacement=True, num_samples=1 << 22)
    return DataLoader(data, batch_size=32, sampler=sampler, num_workers=workers, collate_fn=collate or finished)


IMAGES = 128


@cache
def images() -> Any:
    import torch

    return torch.randn(IMAGES, 3, 224, 224)


def finished(ids: Sequence[int]) -> tuple[Any, Any]:
    """Return a batch of new tensors, as the last step of a user's preparation leaves them."""
    import torch

    chosen = torch.tensor(list(ids))
    return images().index_select(0, chosen), chosen


def ready_samples() -> Any:
    import torch
    from torch.utils.data import TensorDataset

    return TensorDataset(images(), torch.arange(IMAGES))


def taking(take: Callable[[], Any], count: int) -> float:
    """Return batches per second, without those that were made while the peer had its turn."""

    def some(number: int) -> None:
        for _ in range(number):
            take()

    some(AHEAD)
    return count / seconds_of(lambda: some(count))


READY = "dataset(input:ready_loader)"


def ready(folder: Path, rounds: int, quick: bool) -> Iterator[Row]:
    from torch.utils.data import default_collate

    count = 8 if quick else 40
    peers = (
        ("DataLoader", iter(ready_loader(1)), 2.0),
        ("DataLoader with default_collate", iter(ready_loader(1, default_collate)), None),
    )
    for name, opened in (("queue", queue_stream), ("zmq", zmq_stream)):
        stream, close = opened(READY, folder)
        for peer, loader, target in peers:
            yield compare(
                f"ready, {name} / {peer}",
                lambda s=stream: taking(s.take, count),
                lambda d=loader: taking(d.__next__, count),
                rounds if target else max(3, rounds // 3),
                target,
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
    steps = 3 if quick else 10

    def rate(take: Callable[[], Any]) -> float:
        def loop() -> None:
            for _ in range(steps):
                take()
                time.sleep(COMPUTE)

        return steps / seconds_of(loop)

    shards = jpegs(folder / "images", quick)
    served = Served(shards)
    rows: list[tuple[str, Callable[[], tuple[Any, Callable[[], None]]]]] = [
        ("fake(cpu), batch 32", lambda: feed_of("fake(cpu)", 32)),
        ("dataset, batch 32", lambda: feed_of(READY, 32)),
        ("JPEG shards, batch 8", lambda: feed_of(f"tfrecord({shards})", 8)),
        ("JPEG shards in S3, batch 8", lambda: feed_of(served.source, 8)),
        ("queue, batch 32", lambda: queue_stream(READY, folder)),
        ("zmq, batch 32", lambda: zmq_stream(READY, folder)),
    ]
    for name, opened in rows:
        stream, close = opened()
        yield compare(
            f"training, {name} / constant", lambda t=stream.take: rate(t), lambda: rate(int), rounds, WITHOUT_STALL
        )
        close()
    served.close()


class Fed:
    """A feed with the names of a stream."""

    def __init__(self, feed: Any) -> None:
        self.take = feed.__next__


def feed_of(source: str, batch: int) -> tuple[Any, Callable[[], None]]:
    from paceline.run.run import Run
    from paceline.train.build import workload_of
    from paceline.workload.feed import Feed

    made = MENU.make(source)
    workload = workload_of(Run(model="resnet18", source=source), made)
    feed = Feed(made.samples_of(workload), made.order(batch, 0), View(0, 1))
    return Fed(feed), feed.close


PARTS = {"parse": parse, "store": store, "recovery": recovery, "ready": ready, "training": training}


def as_a_worker() -> None:
    """Start this process again with the allocator settings that a launcher gives to every worker (ADR 0007).

    Both sides of every ratio, and the worker of a DataLoader, have them.
    """
    missing = {name: value for name, value in KEEP_MEMORY.items() if name not in os.environ}
    if missing:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **missing})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small files and three rounds: whether it works at all")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    as_a_worker()
    here = str(Path(__file__).parent)
    sys.path.insert(0, here)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    had = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    rows: list[Row] = [row for row in had if row["quick"] == options.quick]
    with tempfile.TemporaryDirectory(prefix="paceline-input-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for name in options.only.split(","):
            if any(row["part"] == name for row in rows):
                print(f"{name}: measured already, see {options.json}", flush=True)
                continue
            made = []
            for row in PARTS[name](Path(folder), 3 if options.quick else 12, options.quick):
                print(f"{row['name']}: {row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})", flush=True)
                made.append({**row, "part": name, "quick": options.quick})
            rows += made
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
    head = ["what", "ratio", "95 %", "ours /s", "peer /s"]
    cells = [
        [r["name"], f"{r['ratio']:.2f}", f"{r['low']:.2f} to {r['high']:.2f}", f"{r['ours']:.1f}", f"{r['peer']:.1f}"]
        for r in rows
    ]
    show(head, cells)
    for row in rows:  # what is at most 2 % of a step is judged by its worse end
        if row["target"] is not None:
            print(verdict(row["name"], row["low"] if row["target"] == WITHOUT_STALL else row["ratio"], row["target"]))


if __name__ == "__main__":
    main()
