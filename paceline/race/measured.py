"""Measure the starts of a race: a cell alone in its processes, or cells that take turns in the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from paceline.measure.measure import WATCHED, OnLine, measure
from paceline.measure.periods import in_periods
from paceline.measure.record.figures import Memory
from paceline.measure.together import measure_together
from paceline.measure.turns import TurnsTask
from paceline.race.cells import Cell, Start
from paceline.race.folder import Result
from paceline.race.script import measure_script
from paceline.run.compose.compose import check
from paceline.run.run import Run

# Steps of each contender whose events are kept; a single step would show no exchange that crosses the step.
SHARED_WATCHED = 2
SHORT_WARMUP = 2  # steps before the memory of a contender is read; optimizers make their state in the first one
WATCHED_ROUNDS = 2  # rounds whose shared starts keep events; later ones only measure


class Measurer(Protocol):
    """Measures the starts of a race; tests use one that draws random numbers."""

    def alone(self, cell: Cell, on_line: OnLine) -> Result:
        """Return the record of a cell that runs alone in its processes."""

    def together(self, start: Start, seconds: float, on_line: OnLine) -> Sequence[Result]:
        """Return the records of cells that take turns for about this many seconds. Raises TurnFailed."""

    def memory(self, cell: Cell) -> Memory:
        """Return the memory of a cell's workers in a short start of its own; empty if it is not measured."""


class Measured:
    """Measures starts, and caches the FLOPs of a sample for each workload; `watched` as in `measure`.

    `turns` fixes the number of turns of a shared start; `room` replaces the free memory, in bytes. `weighs` says
    whether the memory of contenders that take turns is measured.
    """

    def __init__(
        self, *, watched: int = WATCHED, turns: int | None = None, room: int | None = None, weighs: bool = True
    ) -> None:
        self._watched, self._turns, self._room, self._weighs = watched, turns, room, weighs
        self._flops: dict[tuple[Any, ...], int] = {}

    def alone(self, cell: Cell, on_line: OnLine) -> Result:
        if cell.script:
            return measure_script(cell.script, cell.run)
        run = cell.run
        # The last step is never crossed, so a few watched steps would not show a schedule that crosses the step.
        composed = cell.composed or check(run)
        crosses = composed.axes is not None and composed.axes.schedule.crosses_step
        watched = WATCHED if crosses else self._watched
        results = measure(run, on_line, composed=composed, flops=self._flops.get(_workload(run)), watched=watched)
        self._learn(run, results)
        return results

    def together(self, start: Start, seconds: float, on_line: OnLine) -> Sequence[Result]:
        runs = tuple(cell.run for cell in start.cells)
        task = TurnsTask(
            runs=runs,
            labels=tuple(cell.label for cell in start.cells),
            turns=self._turns,
            seconds=seconds,
            seed=1000 * runs[0].seed + start.round,
            room=self._room,
        )
        watched = min(self._watched, SHARED_WATCHED) if start.round <= WATCHED_ROUNDS else 0
        composed = [cell.composed or check(cell.run) for cell in start.cells]
        flops = self._flops.get(_workload(runs[0]))
        results = measure_together(task, on_line, composed=composed, flops=flops, watched=watched)
        self._learn(runs[0], results[0])
        return results

    def memory(self, cell: Cell) -> Memory:
        if not self._weighs:
            return {}
        run = in_periods(cell.run.with_(steps=1, warmup=SHORT_WARMUP, repeats=1))
        # Counting FLOPs would need more memory than training; the number that is passed on is not used.
        record, _ = measure(run, _ignore, flops=1, watched=0)
        kept = record.resources
        return {"pss_peak": kept["pss_peak"], "rss_peak": kept["rss_peak"]}

    def _learn(self, run: Run, results: Result) -> None:
        flops = results[0].resources.get("flops")
        if flops and (counted := flops.get("per_sample")):
            self._flops[_workload(run)] = int(counted)


def _ignore(rank: int, stream: str, line: str) -> None:
    """Print nothing."""


def _workload(run: Run) -> tuple[Any, ...]:
    return run.model, run.classes, run.image_size, run.sequence_length
