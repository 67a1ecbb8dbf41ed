"""Measure one configuration: compose, launch, read the reports of all ranks, make a record."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from paceline.cluster.job_folder import job_folder
from paceline.errors import WrongCommand
from paceline.measure.busy import Usage
from paceline.measure.clock import align
from paceline.measure.combining import make_record
from paceline.measure.places import for_workers, launcher_of, places_of
from paceline.measure.record.rank_report import RankReport, read_report
from paceline.measure.record.record import Record
from paceline.run.axes import Composed
from paceline.run.compose.compose import check
from paceline.run.run import Run

OnLine = Callable[[int, str, str], None]
WATCHED = 3  # steps


def measure(
    run: Run,
    on_line: OnLine | None = None,
    *,
    composed: Composed | None = None,
    peak: float | None = None,
    flops: int | None = None,
    watched: int = WATCHED,
) -> tuple[Record, list[list[Any]]]:
    """Carry out a run and return its record, and the events that go beside it.

    `composed` is the result of compose for this run, if the caller has it. `peak` (FLOPs per second of a worker) and
    `flops` (of one sample) are measured and counted if they are None. The events of `watched` steps after the measured
    ones are kept.
    """
    composed = composed or check(run)
    if composed.axes is not None and composed.axes.membership.elastic:
        raise WrongCommand(
            f"membership {composed.axes.membership} without a script",
            why="a measurement needs the same workers from its first step to its last",
            remedy="paceline run --membership elastic -- python SCRIPT",
        )
    with job_folder() as folder, places_of(run) as places:
        network, usage = places.measure(), Usage()
        (folder / "run.json").write_text(for_workers(run).model_dump_json())
        argv = [sys.executable, "-m", "paceline.train.worker"]
        environ = environ_of(run, flops, watched)
        launcher = launcher_of(run)
        launcher.check(places.seats)
        with launcher.start(
            argv,
            workers=run.workers,
            servers=composed.servers,
            folder=folder,
            environ=environ,
            prefix=False,
            on_line=on_line,
            seats=places.seats,
        ) as job:
            job.wait()
        usage.stop()
        ranks = [read_report(job.results() / f"rank-{rank}.json") for rank in range(run.workers)]
    record = make_record(run, composed.notes, ranks, network, peak=peak)
    return record.model_copy(update={"busy": usage.part(ranks)}), aligned(ranks)


def aligned(ranks: Sequence[RankReport]) -> list[list[Any]]:
    """Return the events of every rank, in the time of rank 0."""
    if not all(rank.meetings for rank in ranks):
        return [[] for _ in ranks]
    offsets = align([rank.meetings for rank in ranks])["offsets"]
    return [
        [[seconds - offset, *rest] for seconds, *rest in rank.events]
        for rank, offset in zip(ranks, offsets, strict=True)
    ]


def environ_of(run: Run, flops: int | None, watched: int) -> dict[str, str]:
    """Return the environment of the workers of a run."""
    environ = {**os.environ, "PACELINE_WATCHED": str(watched)}
    if run.threads:
        environ["OMP_NUM_THREADS"] = str(run.threads)
    if flops:
        environ["PACELINE_FLOPS"] = str(flops)
    return environ
