"""paceline topology: neighbors, weights, mixing rate and traffic of a topology."""

from __future__ import annotations

import json as jsons
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.errors import WrongCommand
from paceline.measure.record.record import check_writable, write


@app.command()
def topology(
    text: Annotated[str, typer.Argument(metavar="TOPOLOGY", help="exp2, 'one_peer(exp2)', 'graph(FILE)', ...")],
    size: Annotated[int | None, typer.Option("--size", help="Number of workers.  [default: 8]")] = None,
    nodes: Annotated[
        str | None, typer.Option("--nodes", help="Number of nodes and of workers on each, such as 2x8.")
    ] = None,
    step: Annotated[int, typer.Option("--step", help="Which step to show, for a topology that changes.")] = 0,
    svg: Annotated[Path | None, typer.Option("--svg", help="Draw the graph to this SVG file.")] = None,
    json: o.JsonFile = None,
) -> None:
    """Show a topology: neighbors, weights, how fast it mixes and how much it sends."""
    from paceline.report.topology import look, picture, spoken, values, world

    if json is not None:
        check_writable(json)
    if svg is not None:
        _check_svg(svg)
    ranks, hosts = world(size, nodes)
    view = look(text, ranks, hosts, step)
    drawing = None if svg is None else picture(view)
    for line in spoken(view):
        print(line)
    if svg is not None and drawing is not None:
        write(svg, drawing)
    if json is not None:
        write(json, jsons.dumps(values(view), indent=1) + "\n")


def _check_svg(path: Path) -> None:
    """Check the file as check_writable does, with --svg in the message."""
    try:
        check_writable(path)
    except WrongCommand as problem:
        parts = [part.replace("--json", "--svg").replace("record.json", "topology.svg") for part in _parts(problem)]
        raise WrongCommand(parts[0], why=parts[1], remedy=parts[2]) from None


def _parts(problem: WrongCommand) -> tuple[str, str, str]:
    return problem.what, problem.why, problem.remedy
