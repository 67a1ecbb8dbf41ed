"""paceline data: write samples to TFRecord shards, and check shards."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import app
from paceline.cli.options import JsonFile
from paceline.cli.show import size
from paceline.errors import WrongCommand
from paceline.run.run import Run

FORMS = {"pack": 2, "verify": 1}  # words after each


@app.command()
def data(
    words: Annotated[list[str], typer.Argument(help="pack SOURCE DIR, or verify DIR.")],
    model: Annotated[
        str, typer.Option("--model", help="pack: the model that takes or makes the samples.")
    ] = "small_cnn",
    shards: Annotated[int, typer.Option("--shards", help="pack: number of training files.")] = 8,
    seed: Annotated[int, typer.Option("--seed", help="pack: random seed of the model.", min=0)] = 0,
    json_file: JsonFile = None,
) -> None:
    """Write the samples of a source to TFRecord shards, or check every record of shards.

    `paceline data pack "idx(FOLDER)" DIR --shards 16` writes train-00000-of-00016 and so on, and an index; then
    train with --source "tfrecord(DIR)". `paceline data verify DIR` names every damaged record; its exit code is 1 if
    there is any.
    """
    if words[0] not in FORMS or len(words) != 1 + FORMS[words[0]]:
        raise WrongCommand(
            f"paceline data {' '.join(words)}", why="it is pack SOURCE DIR, or verify DIR", remedy="data verify DIR"
        )
    if words[0] == "pack":
        _pack(words[1], Path(words[2]), model, shards, seed, json_file)
    else:
        _verify(Path(words[1]), json_file)


def _pack(text: str, folder: Path, model: str, shards: int, seed: int, json_file: Path | None) -> None:
    from paceline.train.build import workload_of
    from paceline.workload import sources
    from paceline.workload.tfrecord.pack import pack

    source = sources.MENU.make(text)
    workload = workload_of(Run(model=model, source=text, seed=seed), source)

    def progress(done: int, count: int) -> None:
        if sys.stdout.isatty():
            print(f"\r{done:,} of {count:,} samples", end="" if done < count else "\n", flush=True)

    made = pack(source.samples_of(workload), source.tests(), folder, shards, progress)
    records, nbytes = sum(len(shard.offsets) for shard in made), sum(shard.size for shard in made)
    print(f'{records:,} samples in {len(made)} files, {size(nbytes)}; train with --source "tfrecord({folder})"')
    _keep(json_file, {"files": len(made), "records": records, "bytes": nbytes})


def _verify(folder: Path, json_file: Path | None) -> None:
    from paceline.workload.tfrecord.pack import verify

    verdict = verify(folder)
    for damage in verdict.damages:
        print(f"damaged: {damage}")
    print(f"{verdict.records:,} sound records in {verdict.files} files, {size(verdict.nbytes)}")
    _keep(json_file, verdict.to_dict())
    if verdict.damages:
        raise typer.Exit(1)


def _keep(path: Path | None, content: object) -> None:
    if path is not None:
        path.write_text(json.dumps(content, indent=1))
