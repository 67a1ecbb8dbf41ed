"""paceline advise: advise a strategy for a model on given machines, in a paragraph."""

from __future__ import annotations

import json as jsons
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.forecast import DEFAULT, LinkFile, MachinesText, Precision, Profile, StepTime, make_study
from paceline.errors import WrongCommand
from paceline.measure.record.record import check_writable, write

WIDTH = 80


@app.command()
def advise(
    model: Annotated[
        str, typer.Option("--model", help="A model from `paceline models`, or your own with --profile.")
    ] = ("resnet50"),
    machines: MachinesText = DEFAULT,
    workers: Annotated[
        int | None, typer.Option("--workers", "-np", min=1, help="Number of workers, if not all machines are used.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, max=1 << 20, help="Samples per worker.")] = 64,
    precision: Precision = "fp32",
    profile: Profile = None,
    step_time: StepTime = None,
    link: LinkFile = None,
    runs: o.Runs = Path("runs"),
    json: o.JsonFile = None,
) -> None:
    """Recommend a strategy for a model on given machines, with the runners-up and a command to paste.

    Strategies that change convergence are recommended only if records in --runs show that they keep the accuracy.
    """
    from paceline.forecast.advise import advise as work
    from paceline.forecast.advise import flags, spoken
    from paceline.forecast.certificate import FILE, read_certificate
    from paceline.measure.record.store import Store, open_store

    if json is not None:
        check_writable(json)
    count = "" if workers is None else str(workers)
    study, _ = make_study(
        model, machines, "all", count, batch_size, precision, profile=profile, step_time=step_time, link=link
    )
    store = open_store([runs]) if runs.is_dir() else Store()
    advice = work(study, [stored.record for stored in store.records])
    if advice is None:
        raise WrongCommand("advise", why="no strategy fits these machines", remedy="another number of workers")
    for paragraph in spoken(study, advice):
        print(textwrap.fill(paragraph, WIDTH, break_on_hyphens=False))
    print(f"\n  {flags(study, advice)}\n")
    certificate = read_certificate(runs / FILE)
    doubt = "no certificate: paceline forecast --check measures how far forecasts are off here"
    for line in [doubt] if certificate is None else [certificate.sentence(), *certificate.extrapolations(study)]:
        print(textwrap.fill(line, WIDTH, break_on_hyphens=False))
    if json is not None:
        values = {
            "workers": advice.workers,
            "strategy": advice.best.strategy,
            "rate": advice.best.outlook.rate if advice.best.outlook else None,
            "runners_up": [point.strategy for point in advice.runners_up],
            "ddp": {"bucket_cap_mb": advice.bucket, "rate": advice.ddp, "enough": advice.ddp_is_enough},
            "not_advised": [point.strategy for point in advice.faster],
            "command": flags(study, advice),
        }
        write(json, jsons.dumps(values, indent=1) + "\n")
