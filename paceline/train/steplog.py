"""Times the updates of a user's own loop, for `paceline race -- python my_train.py`.

    |-- batch, forward, backward --|-- pace.step() --|   one entry: from the end of one update to the end of the next

What it saw is left in the job's folder when the process ends, where the launcher looks for it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

from paceline.bench.memory import peak_rss, pss

MOST = 1_000_000  # updates; a longer training is judged by its beginning


class StepLog:
    """`dealt` says how many batches and samples this rank was given so far."""

    def __init__(
        self,
        pace: Any,
        dealt: Callable[[], tuple[int, int]] = lambda: (0, 0),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._pace, self._dealt, self._clock = pace, dealt, clock
        self._last, self._cpu, self._received = clock(), time.process_time(), list(pace.comm.received())
        self._before = dealt()
        self.steps: list[float] = []
        self.batches: list[tuple[int, int]] = []
        self.exposed: list[float] = []
        self.update: list[float] = []

    def note(self) -> None:
        """An update has ended."""
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
        """Samples of an update, on average; not of one before which an evaluation was dealt batches, too."""
        usual = median_low(count for count, _ in self.batches)
        return round(fmean(samples for count, samples in self.batches if count == usual))

    def found(self, *, device: str) -> dict[str, Any]:
        """As a worker of `paceline run` tells it."""
        pace, count = self._pace, max(1, len(self.steps))
        received = zip(pace.comm.received(), self._received, strict=True)
        engines, service = getattr(pace, "engines", []), getattr(pace.comm, "service", None)
        return {
            "rank": pace.comm.rank,
            "batch": self.batch,
            "steps": self.steps,
            "parts": {"exposed": self.exposed, "update": self.update},
            "pushed_per_step": [sent / count for sent in service.sent] if service is not None else [],
            "staleness": {},
            "profile": None,
            "network": {},
            "received_per_step": [(now - then) / count for now, then in received],
            "cpu_seconds_per_step": (time.process_time() - self._cpu) / count,
            "pss_peak": pss(),
            "rss_peak": peak_rss(),
            "comm": type(pace.comm).__name__.removesuffix("Comm").lower(),
            "device": device,
            "plan": {"chunks": sum(len(engine.chunks) for engine in engines)} if engines else {},
            "notes": [note] if (note := getattr(pace, "note", "")) else [],
            "events": [],
            "events_exposed": 0.0,
            "losses": [],
            "coding": {},
            "accuracy": [],
            "replicas": {},
            "skipped": pace.loss_scale.skipped if pace.loss_scale else 0,
            "gpu": {"use": None, "memory": None},
            "flops": None,
            "peak": None,
        }

    def write(self, **known: Any) -> None:
        """Into the job's folder, whole or not at all."""
        if self.steps:
            path = Path(os.environ["PACELINE_JOB"]) / f"steps-{self._pace.comm.rank}.json"
            fresh = path.with_suffix(".fresh")
            fresh.write_text(json.dumps(self.found(**known)))
            fresh.replace(path)
