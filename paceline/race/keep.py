"""Measure a run, compare it with its baseline and expectations, and write its record to the folder of runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.cluster.environment import capture
from paceline.errors import NoRoom, PacelineError, WrongCommand
from paceline.files.redact import redact, redacted, secrets_of
from paceline.measure.combining import failed_record
from paceline.measure.measure import OnLine, measure
from paceline.measure.record.events import events_of, write_events
from paceline.measure.record.experiment import Experiment, with_comparison
from paceline.measure.record.record import Record, is_special, make_folder, write
from paceline.measure.stats.intervals import Interval, quotient
from paceline.measure.together import measure_together
from paceline.measure.turns import TurnsTask
from paceline.race.results.standing import contender, setting
from paceline.run.axes import Composed
from paceline.run.compose.flags import check_variables
from paceline.run.run import TO_SCRIPTS, Run


def keep(
    run: Run,
    runs: Path,
    *,
    composed: Composed | None = None,
    chosen: Collection[str] = (),
    json: Path | None = None,
    on_line: OnLine | None = None,
    peak: float | None = None,
    baseline: Record | None = None,
    experiment: Experiment | None = None,
    race: Mapping[str, Any] | None = None,
    show: Callable[[Record], None] = lambda record: None,
) -> tuple[Record, Path]:
    """Measure and write `runs/ID.json` with its events, and a copy to `json`. A failed run leaves a record, too.

    `composed` is the result of compose for this run, if the caller has it. The record's command names the settings in
    `chosen` even where they have their default. `race` is the round of the run, if runs take turns. `show` gets the
    record before it is written, so that a full disk does not lose the measurement.
    """
    check_variables(run, os.environ)
    check_baseline(run, baseline)
    check_runs(runs)
    make_folder(runs)
    try:
        record, events = measure(run, on_line, composed=composed, peak=peak)
    except PacelineError as problem:
        record = failed_record(run, str(problem), text=run.command(chosen))
        with suppress(PacelineError):  # report the failure of the run, even if the disk is full
            save(record, [], runs / f"{record.id}.json")
        raise
    if baseline is not None:
        record = record.model_copy(update={"efficiency": efficiency(record, baseline)})
    if experiment is not None:
        record = record.model_copy(update={"experiment": with_comparison(experiment, figures(record))})
    record = record.model_copy(update={"race": dict(race or {}), "text": run.command(chosen)})
    show(record.without_secrets())
    path = runs / f"{record.id}.json"
    record = save(record, events, path)
    if json is not None:
        save(record, [] if is_special(json) else events, json)
    return record, path


def keep_together(
    runs: Sequence[Run], folder: Path, *, race: Mapping[str, Any], on_line: OnLine | None = None
) -> list[Record]:
    """Measure runs in one set of processes, one after the other, and write a record of each.

    A failure leaves a failed record of every run. `race` is the round of the runs.
    """
    for run in runs:
        check_variables(run, os.environ)
    check_runs(folder)
    make_folder(folder)
    labels = tuple(f"{contender(run)}, {run.compute}" for run in runs)
    task = TurnsTask(runs=tuple(runs), labels=labels, turns=runs[0].repeats, in_sequence=True)
    try:
        results = measure_together(task, on_line, watched=0)
    except PacelineError as problem:
        failed = [failed_record(run, str(problem)) for run in runs]
        with suppress(PacelineError):  # report the failure of the runs, even if the disk is full
            for record in failed:
                save(record, [], folder / f"{record.id}.json")
        raise
    records = []
    for label, (record, events) in zip(labels, results, strict=True):
        facts = {**race, "shared": True, "mates": [mate for mate in labels if mate != label]}
        record = record.model_copy(update={"race": facts})
        records.append(save(record, events, folder / f"{record.id}.json"))
    return records


def save(record: Record, events: list[list[Any]], path: Path) -> Record:
    """Write a record with its events; return the record as written, without secrets."""
    record = record.model_copy(update={"events": events_of(path).name if any(events) else None}).without_secrets()
    write(path, record.to_json())
    try:
        write_events(path, events)
    except NoRoom as problem:
        lost = [*record.notes, f"without events: {problem}"]
        record = record.model_copy(update={"events": None, "notes": lost})
        write(path, record.to_json())
    return record


def check_runs(runs: Path) -> None:
    """Raise before the run starts if the folder cannot be written."""
    if address := re.match(
        r"([a-z][a-z0-9+.\-]+):/+", str(runs), re.I
    ):  # pathlib has collapsed the two slashes of a URL
        where = f"{address[1]}://{str(runs)[address.end() :]}"
        why = "this version keeps records in folders only"
        raise WrongCommand(f"--runs {redact(where)}", why=why, remedy="--runs FOLDER")
    place = runs
    while not os.path.exists(place):
        place = place.parent
    if not os.path.isdir(place) or not os.access(place, os.W_OK):
        why = f"{place} is not a folder" if not os.path.isdir(place) else f"{place} cannot be written"
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
    theirs, ours = _work(baseline.run, baseline.environment), _work(run, capture())
    odd = [name for name in ours if theirs[name] != ours[name]]
    if odd:
        differences = ", ".join(f"{name.replace('_', ' ')} {theirs[name]} there, {ours[name]} here" for name in odd)
        raise WrongCommand(f"--baseline {baseline.id}", why=differences, remedy=_alone(run, ours["threads"]).text)


def _work(run: Run, environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of one worker's work and its threads, in the form that records use."""
    settings = setting(run, environment)
    values = {name: "unset" if value == "None" else value for name, value in settings if name not in ("lab", "profile")}
    return dict(redacted(values, secrets_of(os.environ)))


def _alone(run: Run, threads: str) -> Run:
    """Return the baseline of a run: one worker with the same work."""
    placed = {*TO_SCRIPTS, "lab", "global_batch"} - {"deadline"}
    kept = {name: value for name, value in run.model_dump().items() if name not in placed}
    return Run.model_validate({**kept, "workers": 1, "batch_size": run.per_worker, "threads": threads})


def total(record: Record) -> Interval:
    """Return the rate of the whole job, with its interval over the steps of the run."""
    rate = record.rate["total"]
    return Interval(rate["mean"], rate["low"], rate["high"], rate["confidence"])


def efficiency(record: Record, baseline: Record) -> dict[str, Any]:
    """Return efficiency (rate / (workers x rate of one)) and speed-up, each with its interval."""
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
    """Return the figures about which an experiment can have expectations."""
    whole = total(record)
    measured: dict[str, dict[str, float | None]] = {
        "rate": {"value": whole.centre, "low": whole.low, "high": whole.high},
        "per_worker": {"value": sum(record.rate["per_worker"]) / record.workers},
        "step": {"value": record.step["median"]},
    }
    if record.efficiency:
        measured["efficiency"] = {name: record.efficiency[name] for name in ("value", "low", "high")}
    return measured
