"""paceline data: write samples to TFRecord shards, check shards, serve them as an object store, and time sources."""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import app
from paceline.cli.options import JsonFile
from paceline.cli.show import plus_minus, size
from paceline.errors import WrongCommand
from paceline.measure.record.record import check_writable, write
from paceline.run.run import Run

# The forms of the verb, and the words that follow each.
FORMS = {
    "pack": "SOURCE DIR",
    "verify": "DIR",
    "bench": "SOURCE",
    "serve": "DIR",
    "produce": "SOURCE ADDRESS",
}


@app.command()
def data(
    words: Annotated[
        list[str],
        typer.Argument(help="pack SOURCE DIR, verify DIR, bench SOURCE, serve DIR, produce SOURCE ADDRESS."),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="pack, bench, produce: a model that can train on the samples. Fake samples have its input shape.",
        ),
    ] = "small_cnn",
    shards: Annotated[int, typer.Option("--shards", help="pack: number of training files.")] = 8,
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            help="pack: random seed of the model. bench, produce: seed of model and sample order. "
            "serve: seed of the faults.",
            min=0,
        ),
    ] = 0,
    batch_size: Annotated[int, typer.Option("--batch-size", help="bench, produce: samples in a batch.", min=1)] = 32,
    seconds: Annotated[
        float,
        typer.Option("--seconds", help="bench: how many seconds to measure the source alone.", min=0.1, max=3600.0),
    ] = 5.0,
    port: Annotated[
        int, typer.Option("--port", help="serve: port on this machine; 0 takes a free one.", min=0, max=65535)
    ] = 0,
    faults: Annotated[
        float, typer.Option("--faults", help="serve: share of requests that fail on purpose.", min=0.0, max=0.9)
    ] = 0.0,
    json_file: JsonFile = None,
) -> None:
    """Write samples to TFRecord shards, check shards, serve a folder over the S3 protocol, or send batches to workers.

    `paceline data pack "idx(FOLDER)" DIR --shards 16` writes the files train-00000-of-00016 and so on, and an index;
    then train with --source "tfrecord(DIR)". `paceline data verify DIR` lists damaged records; if there are any, its
    exit code is 1. `paceline data bench SOURCE --model M` measures a source alone, and how long a training step waits
    for it. `paceline data serve DIR` starts an S3 server for this machine only. It prints the environment variables
    that clients need, and runs until Ctrl-C. `paceline data produce SOURCE tcp://127.0.0.1:5555` sends
    batches to workers with --source "zmq(tcp://127.0.0.1:5555)".
    """
    if words[0] not in FORMS or len(words) != 1 + len(FORMS[words[0]].split()):
        forms = ", ".join(f"{form} {rest}" for form, rest in FORMS.items())
        raise WrongCommand(f"paceline data {' '.join(words)}", why=f"it is one of {forms}", remedy="data verify DIR")
    if json_file is not None:
        check_writable(json_file)
    if words[0] == "pack":
        _pack(words[1], Path(words[2]), model, shards, seed, json_file)
    elif words[0] == "verify":
        _verify(words[1], json_file)
    elif words[0] == "bench":
        _bench(words[1], model, batch_size, seed, seconds, json_file)
    elif words[0] == "produce":
        _produce(words[1], words[2], model, batch_size, seed)
    else:
        _serve(Path(words[1]), port, faults, seed)


def _pack(text: str, folder: Path, model: str, shards: int, seed: int, json_file: Path | None) -> None:
    from paceline.train.build import workload_of
    from paceline.workload import sources
    from paceline.workload.tfrecord.pack import pack

    source = sources.MENU.make(text)
    if source.kind == "stream":
        raise WrongCommand(f"data pack {text}", why="a stream has no end", remedy="a source of files")
    workload = workload_of(Run(model=model, source=text, seed=seed), source)

    def progress(done: int, count: int) -> None:
        if sys.stdout.isatty():
            print(f"\r{done:,} of {count:,} samples", end="" if done < count else "\n", flush=True)

    made = pack(source.samples_of(workload), source.tests(), folder, shards, progress)
    records, nbytes = sum(len(shard.offsets) for shard in made), sum(shard.size for shard in made)
    print(f'{records:,} samples in {len(made)} files, {size(nbytes)}; train with --source "tfrecord({folder})"')
    _keep(json_file, {"files": len(made), "records": records, "bytes": nbytes})


def _verify(where: str, json_file: Path | None) -> None:
    from paceline.workload.tfrecord.pack import verify

    verdict = verify(where)
    for damage in verdict.damages:
        print(f"damaged: {damage}")
    print(f"{verdict.records:,} sound records in {verdict.files} files, {size(verdict.nbytes)}")
    _keep(json_file, verdict.to_dict())
    if verdict.damages:
        raise typer.Exit(1)


def _bench(text: str, model: str, batch_size: int, seed: int, seconds: float, json_file: Path | None) -> None:
    from paceline.run.compose.compose import check
    from paceline.train.source_bench import rate_alone, stall_in_training

    run = Run(model=model, source=text, seed=seed, batch_size=batch_size)
    check(run)
    alone = rate_alone(run, seconds)
    print(f"alone     {plus_minus(alone.samples, 1)} samples/s, {size(alone.bandwidth)}/s, in batches of {batch_size}")
    stall = stall_in_training(run)
    share, step = 100 * stall.share, stall.step * 1e3
    print(f"training  {model}: {share:.1f} % of a step of {step:.1f} ms waits for data")
    print(f"          {plus_minus(stall.rate, 1)} samples/s with one worker")
    for note in stall.notes:
        print(f"note: {note}")
    _keep(json_file, {"source": text, "model": model, "alone": alone.to_dict(), "training": stall.to_dict()})


def _serve(folder: Path, port: int, faults: float, seed: int) -> None:
    """Serve until a signal ends this process."""
    from paceline.workload.objects.serve import Server

    with Server(folder, port, faults=faults, seed=seed) as server:
        for name, value in server.environment.items():
            print(f"export {name}={value}")
        print(f'# {folder} is {server.address}: --source "tfrecord({server.address})"; Ctrl-C ends it', flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("ended")


def _produce(text: str, address: str, model: str, batch_size: int, seed: int) -> None:
    """Send batches until a signal ends this process."""
    from paceline.train.producer import batches_of, keep_memory
    from paceline.workload.stream.pipe import TOKEN, Push

    keep_memory()
    batches = batches_of(Run(model=model, source=text, seed=seed), batch_size)
    first = next(batches)
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    push = Push(address, token)
    if TOKEN not in os.environ:
        print(f"export {TOKEN}={token}")
    print(f'# --source "zmq({push.address})" --batch-size {batch_size}; Ctrl-C ends it', flush=True)
    try:
        for batch in chain([first], batches):
            push.send(batch, f"source {text}")
    except KeyboardInterrupt:
        print("ended")
    finally:
        push.close()


def _keep(path: Path | None, content: object) -> None:
    if path is not None:
        write(path, json.dumps(content, indent=1))
