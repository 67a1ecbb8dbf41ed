"""Measure a shared start: launch processes in which contenders take turns, and make a record of each contender."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from typing import Any

from paceline.cluster.job_folder import job_folder
from paceline.errors import TurnFailed, WorkerFailed
from paceline.measure.busy import Usage
from paceline.measure.combining import make_record
from paceline.measure.measure import WATCHED, OnLine, aligned, environ_of
from paceline.measure.places import for_workers, launcher_of, places_of
from paceline.measure.record.rank_report import RankReport, read_report
from paceline.measure.record.record import Record
from paceline.measure.turns import TurnsTask, report_path, task_path
from paceline.run.axes import Composed
from paceline.run.compose.compose import check

MEMORY = "memory is that of the whole process, with all contenders that took turns in it"


def measure_together(
    task: TurnsTask,
    on_line: OnLine | None = None,
    *,
    composed: Sequence[Composed] | None = None,
    flops: int | None = None,
    watched: int = WATCHED,
) -> list[tuple[Record, list[list[Any]]]]:
    """Return a record with its events for each contender. Raises TurnFailed with the contender that failed, if known.

    `composed` has the results of compose for the runs of the task, if the caller has them. `flops` of a sample are
    counted if it is None. The events of `watched` steps after the turns are kept.
    """
    composed = composed or [check(run) for run in task.runs]
    run = task.runs[0]
    with job_folder() as folder, places_of(run) as places:
        network, usage = places.measure(), Usage()
        placed = task.model_copy(update={"runs": tuple(map(for_workers, task.runs))})
        task_path(folder).write_text(placed.model_dump_json())
        argv = [sys.executable, "-m", "paceline.train.turns"]
        launcher = launcher_of(run)
        launcher.check(places.seats)
        with launcher.start(
            argv,
            workers=run.workers,
            servers=0,
            folder=folder,
            environ=environ_of(run, flops, watched),
            prefix=False,
            on_line=on_line,
            seats=places.seats,
        ) as job:
            try:
                job.wait()
            except WorkerFailed as problem:
                raise _blamed(job.results(), run.workers, problem) from None
        usage.stop()
        results = []
        for index, (one, parts) in enumerate(zip(task.runs, composed, strict=True)):
            ranks = [read_report(report_path(job.results(), index, rank)) for rank in range(run.workers)]
            length = one.with_(repeats=len(ranks[0].seconds))
            record = make_record(length, [*parts.notes, *_notes(task, ranks)], ranks, network, drop=False)
            results.append((record.model_copy(update={"busy": usage.part(ranks)}), aligned(ranks)))
    return results


def _blamed(folder: Path, workers: int, problem: WorkerFailed) -> TurnFailed:
    """Return the failure with the contender whose turn it was; ranks that only lost a peer are considered last."""
    reports = []
    for rank in range(workers):
        with suppress(OSError, ValueError):
            reports.append(json.loads((folder / f"rank-{rank}.failed.json").read_text()))
    for report in sorted(reports, key=lambda one: one.get("kind") == "PeerLost"):
        if report.get("contender") or report.get("kind") == "NoRoom":
            what, contender = str(report.get("error") or problem), str(report["contender"])
            return TurnFailed(what, contender, str(report["kind"]), problem.remedy)
    return TurnFailed(str(problem), "", "", problem.remedy)


def _notes(task: TurnsTask, ranks: Sequence[RankReport]) -> list[str]:
    alone = len(task.runs) == 1
    if task.in_sequence:
        return [] if alone else [MEMORY]
    drain, block = fmean(median(rank.drains) for rank in ranks), fmean(median(rank.seconds) for rank in ranks)
    late = f"finishing exchanges that cross the step took {1e3 * drain:.1f} ms after each turn, outside the rate"
    return ([] if alone else [MEMORY]) + ([late] if drain > 0.01 * block else [])
