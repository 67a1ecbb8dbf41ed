"""paceline race: strategies side by side on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.show import plus_minus, received, size, table
from paceline.record import check_writable, write
from paceline.run import Run


@app.command()
def race(
    workers: o.Workers = 2,
    model: o.ModelText = "mobilenet_v2",
    classes: o.Classes = None,
    image_size: o.ImageSize = None,
    sequence_length: o.SequenceLength = None,
    batch_size: o.BatchSize = None,
    source: o.SourceText = o.DEFAULTS.source,
    optimizer: o.OptimizerText = o.DEFAULTS.optimizer,
    memory_format: o.MemoryFormat = o.DEFAULTS.memory_format,
    precision: o.Precision = o.DEFAULTS.precision,
    steps: o.Steps = 5,
    warmup: o.Warmup = 3,
    repeats: o.Repeats = 3,
    rounds: Annotated[int, typer.Option("--rounds", help="Fresh starts of every contender.")] = 5,
    seed: o.Seed = o.DEFAULTS.seed,
    threads: o.Threads = None,
    runs: Annotated[Path, typer.Option("--runs", help="Folder for the records.")] = Path("runs"),
    json: o.JsonFile = None,
) -> None:
    """Race limit, ddp and allreduce on this machine: fresh processes, interleaved, with intervals.

    Without flags: mobilenet_v2 on 32x32 images, 64 samples for each of two workers.
    """
    from paceline.jobs import race as job

    if model == "mobilenet_v2":
        image_size, batch_size = image_size or 32, batch_size or 64
    base = o.run_from({key: value for key, value in locals().items() if key not in ("rounds", "runs", "job")})
    if rounds < 1:
        raise o.WrongCommand(f"--rounds {rounds}", why="at least 1 round is needed")
    if json is not None:
        check_writable(json)
    print(f"{', '.join(job.CONTENDERS)}: {rounds} round(s) on {workers} workers, {_spoken(base)}", flush=True)
    result = _with_progress(base, rounds, runs)
    for line in table_of(result):
        print(line)
    print(f"\nrecords: {result.folder}")
    if json is not None:
        write(json, summary(result))


def _spoken(base: Run) -> str:
    return f"{base.model}, batch {base.per_worker} per worker"


def _with_progress(base: Run, rounds: int, runs: Path):  # type: ignore[no-untyped-def]
    from paceline.jobs import race as job

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    console = Console(file=sys.stderr)
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("racing", total=rounds * len(job.CONTENDERS))

        def done(race: job.Race, name: str, number: int) -> None:
            rate = race.of(name).rates()[-1]
            unit = race.of(name).records[-1].unit
            progress.console.print(f"round {number + 1}  {name:10} {rate:8.1f} {unit}/sec", highlight=False)
            progress.advance(bar)

        return job.race(base, rounds=rounds, folder=runs, on_done=done, on_line=lambda *_: None)


def table_of(race):  # type: ignore[no-untyped-def]
    """One row per contender; ratios are paired round by round."""
    from paceline.jobs.race import BASE

    unit = race.standings[0].records[0].unit
    head = ("contender", f"{unit}/sec", f"of {BASE}", "of limit", "step ms", "received", "memory")
    rows = []
    for standing in race.standings:
        last = standing.records[-1]
        rows.append(
            (
                standing.name,
                plus_minus(standing.rate(), 1),
                plus_minus(standing.against(race.of(BASE))),
                plus_minus(standing.against(race.of("limit"))),
                f"{last.step['median'] * 1e3:.1f}",
                received(last),
                size(max(last.resources["pss_peak"])),
            )
        )
    yield ""
    yield from table(head, rows)
    yield ""
    yield "+- is a 95 % interval over rounds (fresh processes); ratios compare the same round."
    if race.rounds < 5:
        yield f"{race.rounds} round(s) give figures but no verdict: use --rounds 5 or more."


def summary(race) -> str:  # type: ignore[no-untyped-def]
    """The race as JSON: rates of every round, and where the records are."""
    import json

    standings = [
        {"name": s.name, "rates": s.rates(), "records": [record.id for record in s.records]} for s in race.standings
    ]
    return json.dumps({"folder": str(race.folder), "rounds": race.rounds, "contenders": standings}, indent=1) + "\n"
