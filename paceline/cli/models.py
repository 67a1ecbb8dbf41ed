"""paceline models: the models that can be trained, with their sizes."""

from __future__ import annotations

import json as jsons
from dataclasses import asdict
from typing import Annotated, Any

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.show import table
from paceline.errors import WrongCommand
from paceline.measure.record.record import check_writable, write
from paceline.run.run import SHAPES


@app.command()
@o.takes_run(SHAPES)
def models(
    values: dict[str, Any],
    names: Annotated[
        list[str] | None, typer.Argument(help="Show only these, with settings if needed: 'resnet50(bias=true)'.")
    ] = None,
    json: o.JsonFile = None,
) -> None:
    """List the models with their unit (what a sample is), parameters, tensors, megabytes and forward FLOPs.

    To train your own, write --model package.module:function, where the function returns a torch Module or a
    paceline.Workload.
    """
    from paceline.workload.describe import catalogue, describe_texts

    if json is not None:
        check_writable(json)
    chosen = describe_texts(names, **values) if names else catalogue()
    if not names and any(values.values()):
        raise WrongCommand(
            "flags without a model", why="not every model takes them", remedy="paceline models resnet50 ..."
        )
    described = [asdict(description) for description in chosen]
    if json is not None:
        write(json, jsons.dumps(described, indent=1) + "\n")
    head = ("model", "unit", "parameters", "tensors", "MB", "GFLOPs")
    rows = [
        (
            row["name"],
            row["unit"],
            f"{row['parameters']:,}",
            str(row["tensors"]),
            f"{row['bytes'] / 1e6:.1f}",
            f"{row['flops_per_sample'] / 1e9:.2f}",
        )
        for row in described
    ]
    for line in table(head, rows):
        print(line)
