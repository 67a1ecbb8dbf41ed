"""paceline explain: show what a run would do, or why it is refused, without running it."""

from __future__ import annotations

import json as jsons
from typing import Annotated, Any

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.run import settings_on_command_line
from paceline.errors import WrongCommand
from paceline.measure.record.record import check_writable, write


@app.command()
@o.takes_run(workers=o.Changed(default=2))
def explain(
    context: typer.Context,
    values: dict[str, Any],
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Settings in the form of published benchmark scripts: dnn=resnet50 bs=64 nworkers=4."),
    ] = None,
    json: o.JsonFile = None,
) -> None:
    """Show what a run would send and plan, or every reason why it is refused, without running it.

    It takes the same flags and words as paceline run.
    """
    from paceline.forecast.on_link import with_prediction
    from paceline.run.explain import declared_by, spoken
    from paceline.run.explain import explain as work
    from paceline.run.own_model import check_own_models

    if context.obj:
        why = "what it sends is known when it has wrapped its model"
        raise WrongCommand("explain with a script", why=why, remedy="leave it out, and give --model")
    if json is not None:
        check_writable(json)
    configuration = o.run_from(values, words or (), settings_on_command_line(context))
    check_own_models([configuration], declared_by(configuration))
    explanation = with_prediction(work(configuration))
    for line in spoken(explanation, settings_on_command_line(context)):
        print(line)
    if json is not None:
        members = (
            {} if explanation.axes is None else {k: str(v) for k, v in vars(explanation.axes).items() if k != "notes"}
        )
        summary = {
            "text": explanation.run.text,
            "axes": members,
            "notes": list(explanation.notes),
            "model_bytes": explanation.model_bytes,
            "chunks": list(explanation.chunks),
            "planned": explanation.planned,
            "received": list(explanation.received),
            "crossing": list(explanation.crossing),
            "steps": explanation.steps,
            "period": explanation.period,
            "rounds": explanation.rounds,
            "prediction": None if explanation.prediction is None else vars(explanation.prediction),
        }
        write(json, jsons.dumps(summary, indent=1) + "\n")
