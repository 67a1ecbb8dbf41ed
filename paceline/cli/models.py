"""paceline models: what can be trained, with sizes."""

from __future__ import annotations

import json as jsons
from dataclasses import asdict
from typing import Annotated

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.show import table
from paceline.errors import WrongCommand
from paceline.record import check_writable, write


@app.command()
def models(
    names: Annotated[list[str] | None, typer.Argument(help="Only these, with settings: 'resnet50(bias=true)'.")] = None,
    classes: o.Classes = None,
    image_size: o.ImageSize = None,
    sequence_length: o.SequenceLength = None,
    json: o.JsonFile = None,
) -> None:
    """List the models with unit, parameters, tensors, bytes and FLOPs of one sample's forward pass.

    Your own: --model package.module:function, a function that returns a Module or a paceline.Workload.
    """
    from paceline.models.describe import catalogue, describe_texts

    if json is not None:
        check_writable(json)
    flags = {"classes": classes, "image_size": image_size, "sequence_length": sequence_length}
    chosen = describe_texts(names, **flags) if names else catalogue()
    if not names and any(flags.values()):
        raise WrongCommand(
            "flags without a model", why="not every model takes them", remedy="paceline models resnet50 ..."
        )
    found = [asdict(description) for description in chosen]
    if json is not None:
        write(json, jsons.dumps(found, indent=1) + "\n")
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
        for row in found
    ]
    for line in table(head, rows):
        print(line)
