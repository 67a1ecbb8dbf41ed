"""paceline forecast: how strategies would scale on machines that are not at hand."""

from __future__ import annotations

import json as jsons
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.errors import WrongCommand
from paceline.measure.record.record import check_writable, write
from paceline.run.run import Run

if TYPE_CHECKING:
    from paceline.forecast.study import Study

DEFAULT = "machines(nodes=16, ranks=8, device=V100, bandwidth=25gbit)"
NO_CERTIFICATE = "no certificate: paceline forecast --check measures how far forecasts are off here"
MachinesText = Annotated[
    str, typer.Option("--machines", help="Machines to forecast for, with units: see docs/howto/forecast.md.")
]
Profile = Annotated[
    Path | None,
    typer.Option("--profile", help="Layer times: a record, a profile, or a trace of torch.profiler.", metavar="FILE"),
]
Precision = Annotated[
    str, typer.Option("--precision", help="fp32, bf16 or fp16: selects the peak FLOPs of the device.")
]
StepTime = Annotated[
    float | None, typer.Option("--step-time", help="Seconds of one step on one worker, instead of --profile.")
]
LinkFile = Annotated[
    Path | None,
    typer.Option("--link", help="The measured network: a file from `paceline net`, or output of nccl-tests."),
]


@app.command()
def forecast(
    model: Annotated[
        str, typer.Option("--model", help="A model from `paceline models`, or your own with --profile.")
    ] = ("resnet50"),
    machines: MachinesText = DEFAULT,
    strategy: Annotated[str, typer.Option("--strategy", help="Strategies, separated by commas, or all.")] = "all",
    workers: Annotated[
        str,
        typer.Option(
            "--workers",
            "-np",
            help="Numbers of workers: one (64), several (8,16), or a range that doubles (8..1024).",
        ),
    ] = "",
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, max=1 << 20, help="Samples per worker.")] = 64,
    precision: Precision = "fp32",
    profile: Profile = None,
    step_time: StepTime = None,
    link: LinkFile = None,
    samples: Annotated[
        int, typer.Option("--samples", min=1, help="Samples in an epoch, to compute what an epoch costs.")
    ] = 1_281_167,
    measured: Annotated[
        list[Path] | None, typer.Option("--measured", help="A measured record to compare with the forecast.")
    ] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write the simulated steps as a Chrome trace.")] = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", help="Write an HTML page with a strategy map and sliders; it works offline."),
    ] = None,
    learn: Annotated[
        int,
        typer.Option(
            "--learn",
            min=0,
            max=1_000_000,
            help="Train virtual replicas of --model with each strategy for this many steps, and print loss and "
            "accuracy against predicted time.",
        ),
    ] = 0,
    source: Annotated[str, typer.Option("--source", help="With --learn: where samples come from.")] = "fake",
    optimizer: Annotated[str, typer.Option("--optimizer", help="With --learn: the optimizer of every replica.")] = "",
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="On this machine, measure configurations that were not used to fit the forecast, and write a "
            "certificate of the errors. Measurements on virtual hosts need root.",
        ),
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="With --check: only a few short configurations.")] = False,
    runs: o.Runs = Path("runs"),
    json: o.JsonFile = None,
) -> None:
    """Forecast how strategies scale on machines that you do not have, and what limits them.

    Time is simulated; the code that schedules messages is the code of real runs. Every assumed figure is listed with
    its source. A certificate, written by --check, says how far forecasts for this machine were off.
    """
    from paceline.forecast.certificate import FILE, read_certificate
    from paceline.forecast.text import spoken

    for path, flag in ((json, "--json"), (trace, "--trace"), (page, "--page")):
        if path is not None:
            check_writable(path, flag)
    if check:
        _check(runs, quick, json)
        return
    if quick:
        raise WrongCommand("--quick", why="a forecast takes seconds; it shortens --check", remedy="--check --quick")
    study, price = make_study(
        model, machines, strategy, workers, batch_size, precision, profile=profile, step_time=step_time, link=link
    )
    certificate = read_certificate(runs / FILE)
    for line in spoken(study, certificate, price=price, samples=samples):
        print(line)
    _overlay(study, measured or [])
    if learn:
        _learn(study, learn, source, optimizer)
    if trace is not None:
        _write_trace(study, trace)
    if page is not None:
        from paceline.report.forecast_page import write_page

        trust = NO_CERTIFICATE if certificate is None else certificate.sentence()
        write_page(study, page, trust, lambda line: print(line, file=sys.stderr, flush=True))
        print(f"page: {page}")
    interval = None if certificate is None else certificate.interval()
    if json is not None:
        from paceline.forecast.records import record_of

        records = [record_of(study, point, interval) for point in study.points if point.outlook is not None]
        values = [jsons.loads(record.to_json()) for record in records]
        write(json, jsons.dumps(values[0] if len(values) == 1 else values, indent=1) + "\n")


def _learn(study: Study, steps: int, source: str, optimizer: str) -> None:
    from paceline.forecast.replicas import learn, spoken

    changes = {"source": source, **({"optimizer": optimizer} if optimizer else {})}
    run = study.run.with_(**changes)
    curves = learn(study, run, steps, lambda line: print(line, file=sys.stderr, flush=True))
    print()
    for line in spoken(study, run, curves):
        print(line)


def _write_trace(study: Study, path: Path) -> None:
    """Write the simulated steps of the fastest strategy at the largest number of workers, for Perfetto."""
    from paceline.report.trace import spans_of

    best = next((p for p in study.at(study.workers[-1]) if not p.is_bound), None)
    if best is None or best.outlook is None:
        raise WrongCommand("--trace", why="no strategy has a forecast")
    spans = spans_of(0, best.outlook.events)
    events = [
        {
            "ph": "X",
            "pid": 0,
            "tid": 0 if span.lane == "compute" else 1,
            "name": span.name,
            "ts": span.start * 1e6,
            "dur": (span.stop - span.start) * 1e6,
            "args": {"step": span.step},
        }
        for span in spans
    ]
    values = {"traceEvents": events, "otherData": {"kind": "forecast", "strategy": best.strategy}}
    write(path, jsons.dumps(values) + "\n")
    print(f"trace of {best.strategy}: {path}")


def _check(runs: Path, quick: bool, json: Path | None) -> None:
    from paceline.forecast.check import check, spoken

    certificate = check(runs, quick=quick, tell=lambda line: print(line, flush=True))
    for line in spoken(certificate):
        print(line)
    if json is not None:
        write(json, certificate.to_json())
    if not certificate.measured:
        raise WrongCommand("--check", why="no configuration could be measured; the notes above say why")


def make_study(
    model: str,
    machines: str,
    strategy: str,
    workers: str,
    batch: int,
    precision: str,
    *,
    profile: Path | None,
    step_time: float | None,
    link: Path | None,
) -> tuple[Study, float]:
    """Return the forecast that the flags describe, and the price of a node."""
    from paceline.forecast.calibrate import calibrate
    from paceline.forecast.links import with_link
    from paceline.forecast.machines import read_machines
    from paceline.forecast.study import assumed_coding, chosen_strategies, chosen_workers, study

    if precision not in ("fp32", "bf16", "fp16"):
        raise WrongCommand(f"--precision {precision}", why="it is fp32, bf16 or fp16", remedy="--precision fp32")
    place = read_machines(machines)
    names = chosen_strategies(strategy)
    fabric, assumptions = place.fabric(), list(place.assumptions())
    counts = chosen_workers(workers) if workers else [fabric.size]
    if link is not None:
        fabric, source = with_link(fabric, link)
        assumptions.append(source)
    known = calibrate(model, file=profile, step=step_time, batch=batch, precision=precision, machines=place)
    coding, how = assumed_coding(place)
    run = Run(model=model, batch_size=batch if profile is None else known.profile.batch_size or batch)
    if how:
        assumptions.append(how)
    return study(run, names, counts, fabric, known, coding=coding, assumptions=assumptions), place.price


def _overlay(study: Study, paths: list[Path]) -> None:
    """Print the rate of each measured record beside its forecast."""
    from paceline.measure.record.record import read

    for path in paths:
        record = read(path)
        name = record.run.strategy or "allreduce"
        point = next((p for p in study.of(name) if p.workers == record.workers and p.outlook is not None), None)
        total = record.rate.get("total")
        if point is None or total is None or point.outlook is None:
            print(f"{path}: {name} on {record.workers} workers is not among the points of this forecast")
            continue
        ratio = point.outlook.rate / total["mean"]
        print(f"{path}: measured {total['mean']:,.1f}, forecast {point.outlook.rate:,.1f} ({ratio - 1:+.0%})")
