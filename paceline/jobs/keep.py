"""A run that is kept: measured, put beside its baseline and what was expected, and written to the folder of runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from paceline.bench.stats import Interval, quotient
from paceline.errors import PacelineError, WrongCommand
from paceline.experiment import Experiment, told
from paceline.jobs.events import write_events
from paceline.jobs.measure import OnLine, failed_record, measure
from paceline.record import Record, write
from paceline.run import Run


def keep(
    run: Run,
    runs: Path,
    *,
    json: Path | None = None,
    on_line: OnLine | None = None,
    peak: float | None = None,
    baseline: Record | None = None,
    experiment: Experiment | None = None,
) -> tuple[Record, Path]:
    """Measure and write `runs/ID.json`, events beside it, a copy to `json`. A run that fails leaves a record too."""
    check_baseline(run, baseline)
    runs.mkdir(parents=True, exist_ok=True)
    try:
        record, events = measure(run, on_line, peak=peak)
    except PacelineError as problem:
        record, events = failed_record(run, str(problem)), []
        save(record, events, runs / f"{record.id}.json")
        raise
    if baseline is not None:
        record = record.model_copy(update={"efficiency": efficiency(record, baseline)})
    if experiment is not None:
        record = record.model_copy(update={"experiment": told(experiment, figures(record))})
    path = runs / f"{record.id}.json"
    record = save(record, events, path)
    if json is not None:
        save(record, events, json)
    return record, path


def save(record: Record, events: list[list[Any]], path: Path) -> Record:
    record = record.model_copy(update={"events": write_events(path, events)})
    write(path, record.to_json())
    return record


def check_runs(runs: Path) -> None:
    """Refuse before the work a folder that could not be written after it."""
    place = runs
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK):
        why = f"{place} is not a folder" if not place.is_dir() else f"{place} cannot be written"
        raise WrongCommand(f"--runs {runs}", why=why, remedy="--runs FOLDER")


def check_baseline(run: Run, baseline: Record | None) -> None:
    if baseline is None:
        return
    if baseline.workers != 1 or not baseline.rate:
        raise WrongCommand(
            f"--baseline {baseline.id}",
            why=f"it has {baseline.workers} workers" if baseline.rate else "that run failed",
            remedy="the record of a run with -np 1",
        )
    if (baseline.run.model, baseline.run.per_worker) != (run.model, run.per_worker):
        raise WrongCommand(
            f"--baseline {baseline.id}",
            why=f"it is of {baseline.run.model}, batch {baseline.run.per_worker}",
            remedy=f"a run of {run.model}, batch {run.per_worker}, with -np 1",
        )


def total(record: Record) -> Interval:
    """The rate of the whole job with its interval over the repeats inside the run."""
    found = record.rate["total"]
    return Interval(found["mean"], found["low"], found["high"], found["confidence"])


def efficiency(record: Record, baseline: Record) -> dict[str, Any]:
    """Rate over workers times the rate of one, and the speed-up, each with its interval."""
    speedup = quotient(total(record), total(baseline))
    return efficiency_of(speedup, record.workers, baseline.id)


def efficiency_of(speedup: Interval, workers: int, baseline: str) -> dict[str, Any]:
    def per_worker(value: float | None) -> float | None:
        return None if value is None else value / workers

    return {
        "value": speedup.centre / workers,
        "low": per_worker(speedup.low),
        "high": per_worker(speedup.high),
        "confidence": speedup.confidence,
        "baseline": baseline,
        "speedup": {"value": speedup.centre, "low": speedup.low, "high": speedup.high},
    }


def figures(record: Record) -> dict[str, dict[str, float | None]]:
    """What an experiment can have expectations about."""
    whole = total(record)
    found: dict[str, dict[str, float | None]] = {
        "rate": {"value": whole.centre, "low": whole.low, "high": whole.high},
        "per_worker": {"value": sum(record.rate["per_worker"]) / record.workers},
        "step": {"value": record.step["median"]},
    }
    if record.efficiency:
        found["efficiency"] = {name: record.efficiency[name] for name in ("value", "low", "high")}
    return found
