"""Time the updates of a user's own loop, for `paceline race -- python my_train.py`.

    |-- batch, forward, backward --|-- pace.step() --|   one entry: from the end of one update to the end of the next

When the process ends, the times are written to the job's folder, and the launcher reads them there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

from paceline.measure.footprint import peak_rss, pss
from paceline.measure.record.rank_report import RankReport
from paceline.measure.starved import queued_seconds

MOST = 1_000_000  # most updates that are kept; later ones are dropped


class StepLog:
    """Times the updates of one rank. `dealt` returns the batches and samples that the rank has used so far."""

    def __init__(
        self,
        pace: Any,
        dealt: Callable[[], tuple[int, int]] = lambda: (0, 0),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._pace, self._dealt, self._clock = pace, dealt, clock
        self._last, self._cpu, self._received = clock(), time.process_time(), list(pace.comm.received())
        self._before, self._queued = dealt(), queued_seconds()
        self.steps: list[float] = []
        self.batches: list[tuple[int, int]] = []
        self.exposed: list[float] = []
        self.update: list[float] = []

    def note(self) -> None:
        """Record the end of an update."""
        now = self._clock()
        if len(self.steps) < MOST:
            self.steps.append(now - self._last)
            (batches, samples), (earlier, of_earlier) = self._dealt(), self._before
            self.batches.append((batches - earlier, samples - of_earlier))
            self.exposed.append(self._pace.times.exposed)
            self.update.append(self._pace.times.update)
        self._last, self._before = now, self._dealt()

    @property
    def batch(self) -> int:
        """Return the mean samples per update. Updates after an evaluation, which also used batches, do not count."""
        usual = median_low(count for count, _ in self.batches)
        return round(fmean(samples for count, samples in self.batches if count == usual))

    def report(self, *, device: str) -> RankReport:
        """Return the report of this rank, in the form that a worker of `paceline run` writes."""
        pace, count = self._pace, max(1, len(self.steps))
        received = zip(pace.comm.received(), self._received, strict=True)
        engines, service = pace.engines, pace.comm.service
        return RankReport(
            rank=pace.comm.rank,
            device=device,
            comm=type(pace.comm).__name__.removesuffix("Comm").lower(),
            batch=self.batch,
            steps=self.steps,
            parts={"exposed": self.exposed, "update": self.update},
            buckets=list(pace.buckets),
            received_per_step=[(now - then) / count for now, then in received],
            pushed_per_step=[sent / count for sent in service.sent] if service is not None else [],
            cpu_seconds_per_step=(time.process_time() - self._cpu) / count,
            queued_seconds_per_step=max(0.0, queued_seconds() - self._queued) / count,
            pss_peak=pss(),
            rss_peak=peak_rss(),
            plan={"chunks": sum(len(engine.chunks) for engine in engines)} if engines else {},
            notes=[*([pace.note] if pace.note else []), *pace.metrics.notes],
            metrics=pace.metrics.rows,
            skipped=pace.loss_scale.skipped if pace.loss_scale else 0,
        )

    def write(self, **known: Any) -> None:
        """Write the report to the job's folder atomically."""
        if self.steps:
            path = Path(os.environ["PACELINE_JOB"]) / f"steps-{self._pace.comm.rank}.json"
            fresh = path.with_suffix(".fresh")
            fresh.write_text(self.report(**known).to_json())
            fresh.replace(path)
