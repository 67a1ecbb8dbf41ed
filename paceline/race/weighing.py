"""The memory of contenders that take turns: each is started alone once, for a few steps, before the first round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from paceline.errors import PacelineError
from paceline.measure.record.figures import Memory
from paceline.race.cells import Start
from paceline.race.folder import Result
from paceline.race.measured import Measurer


class Weighing:
    """Measures the memory of each contender once, and adds it to the records of the first round."""

    def __init__(self, measured: Measurer) -> None:
        self._measured = measured
        self._known: dict[str, Memory] = {}  # by the name of the cell

    def weigh(self, start: Start, progress: Callable[[str], None]) -> None:
        """Measure the contenders of a shared start of the first round that are not known yet."""
        if not start.shared or start.round != 1:
            return
        for cell in start.cells:
            if cell.name not in self._known:
                progress(f"memory of {cell.label}")
                self._known[cell.name] = {}
                with suppress(PacelineError):  # it will fail in its turns, too, and is named then
                    self._known[cell.name] = self._measured.memory(cell)

    def added(self, start: Start, results: Sequence[Result]) -> list[Result]:
        """Return the results of a start, with the memory that is known."""
        known = [self._known.get(cell.name) for cell in start.cells] if start.shared else [None] * len(results)
        return [
            (
                record.model_copy(update={"resources": {**record.resources, "alone": memory}}) if memory else record,
                events,
            )
            for (record, events), memory in zip(results, known, strict=True)
        ]
