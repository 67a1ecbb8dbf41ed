"""Time the updates of a user's own loop, for `paceline run` and `paceline race -- python my_train.py`.

    |-- batch, forward, backward --|-- pace.step() --|   one entry: from the end of one update to the end of the next

Forward and backward are timed by hooks (pass_timer.py), waiting for samples by `worker.batches`, waiting for ranks and
updating by `pace.step()`.

When the process ends, the times are written to the job's folder, and the launcher reads them there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

from paceline.measure.footprint import peak_rss, pss
from paceline.measure.meter import PARTS
from paceline.measure.record.rank_report import BEGAN, RankReport
from paceline.measure.starved import queued_seconds
from paceline.train.pass_timer import PassTimer

MOST = 20_000  # most updates whose times are kept: a training of days leaves a record of a megabyte


class StepLog:
    """Times the updates of one rank.

    `dealt` returns the batches and samples that the rank has used so far, `waited` the seconds that it waited for them.
    `settings` are the strategy and the axes that `wrap` has used.
    """

    def __init__(
        self,
        pace: Any,
        dealt: Callable[[], tuple[int, int]] = lambda: (0, 0),
        clock: Callable[[], float] = time.perf_counter,
        *,
        model: Any = None,
        waited: Callable[[], float] = lambda: 0.0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._pace, self._dealt, self._clock, self._waited = pace, dealt, clock, waited
        self._settings = dict(settings or {})
        self._passes = None if model is None else PassTimer(model, clock)
        self._last, self._cpu, self._received = clock(), time.process_time(), list(pace.comm.received())
        self._before, self._queued, self._fetched = dealt(), queued_seconds(), waited()
        self.count = 0  # all updates, also those whose times are not kept
        self.steps: list[float] = []
        self.batches: list[tuple[int, int]] = []
        self.parts: dict[str, list[float]] = {part: [] for part in PARTS}

    def note(self) -> None:
        """Record the end of an update."""
        now = self._clock()
        self.count += 1
        if len(self.steps) < MOST:
            self.steps.append(now - self._last)
            (batches, samples), (earlier, of_earlier) = self._dealt(), self._before
            self.batches.append((batches - earlier, samples - of_earlier))
            for part, seconds in self._spent().items():
                self.parts[part].append(seconds)
        elif self._passes is not None:
            self._passes.close()
        self._last, self._before, self._fetched = now, self._dealt(), self._waited()

    def _spent(self) -> dict[str, float]:
        """Return the parts of this update. Waiting and updating inside forward or backward count as such only."""
        times, passes = self._pace.times, {} if self._passes is None else self._passes.take()
        inside = {"forward": times.in_forward, "backward": times.in_backward}
        known = {name: max(0.0, seconds - inside[name]) for name, seconds in passes.items()}
        spent = {"data": self._waited() - self._fetched, **known, "exposed": times.exposed, "update": times.update}
        return dict.fromkeys(PARTS, 0.0) | spent

    @property
    def batch(self) -> int:
        """Return the mean samples per update. Updates after an evaluation, which also used batches, do not count."""
        usual = median_low(count for count, _ in self.batches)
        return round(fmean(samples for count, samples in self.batches if count == usual))

    def report(self, *, device: str) -> RankReport:
        """Return the report of this rank, in the form that a worker of `paceline run` writes."""
        pace, count = self._pace, max(1, self.count)
        received = zip(pace.comm.received(), self._received, strict=True)
        engines, service = pace.engines, pace.comm.service
        return RankReport(
            rank=pace.comm.rank,
            device=device,
            comm=type(pace.comm).__name__.removesuffix("Comm").lower(),
            batch=self.batch,
            steps=self.steps,
            parts=self.parts,
            buckets=list(pace.buckets),
            received_per_step=[(now - then) / count for now, then in received],
            pushed_per_step=[sent / count for sent in service.sent] if service is not None else [],
            cpu_seconds_per_step=(time.process_time() - self._cpu) / count,
            queued_seconds_per_step=max(0.0, queued_seconds() - self._queued) / count,
            pss_peak=pss(),
            rss_peak=peak_rss(),
            plan={"chunks": sum(len(engine.chunks) for engine in engines)} if engines else {},
            notes=[*([pace.note] if pace.note else []), *self._notes(), *pace.metrics.notes],
            settings=self._settings,
            metrics=pace.metrics.rows,
            skipped=pace.loss_scale.skipped if pace.loss_scale else 0,
        )

    def _notes(self) -> list[str]:
        kept, count = len(self.steps), self.count
        return [f"rates and times are those of the first {kept:,} of {count:,} updates"] if count > kept else []

    def begin(self) -> None:
        """Leave a mark in the job's folder, so that the launcher knows a script that was measured and then failed."""
        (Path(os.environ["PACELINE_JOB"]) / f"{BEGAN}-{self._pace.comm.rank}").touch()

    def write(self, **known: Any) -> None:
        """Write the report to the job's folder atomically."""
        if self.steps:
            path = Path(os.environ["PACELINE_JOB"]) / f"steps-{self._pace.comm.rank}.json"
            fresh = path.with_suffix(".fresh")
            fresh.write_text(self.report(**known).to_json())
            fresh.replace(path)
