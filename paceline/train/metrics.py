"""Figures that a training script logs itself, for its record.

pace.log(loss=loss, accuracy=0.91)   ->   steps-K.json   ->   record.metrics   ->   page, TensorBoard, --log-to
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch

from paceline.errors import WrongCommand, short
from paceline.measure.record.rank_report import MetricRows

MOST = 100_000  # values of one name; of a longer training only the first ones are kept
MOST_NAMES = 200


class MetricLog:
    """The values that one rank has logged: for each name, pairs of the number of updates and the value."""

    def __init__(self) -> None:
        self.rows: MetricRows = {}
        self.left_out = 0  # values that were not finite, or too many

    def log(self, step: int, values: dict[str, Any]) -> None:
        """Keep numbers, or tensors with one element, under their names.

        A value that is not finite, or beyond MOST or MOST_NAMES, is not kept but counted in `left_out`.
        """
        for name, value in values.items():
            number = _number(name, value)
            rows = self.rows.get(name, [])
            if not math.isfinite(number) or len(rows) >= MOST or (not rows and len(self.rows) >= MOST_NAMES):
                self.left_out += 1
            elif rows and rows[-1][0] == step:
                rows[-1] = (step, number)
            else:
                self.rows.setdefault(name, rows).append((step, number))

    @property
    def notes(self) -> list[str]:
        count = self.left_out
        return [f"{count} logged value{'s' * (count != 1)} not kept: not finite, or too many"] if count else []


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)  # float() of a loss would warn
    except (TypeError, ValueError, RuntimeError):
        raise WrongCommand(
            f"log({name}={short(repr(value))})", why="it is not one number", remedy=f"log({name}=float(...))"
        ) from None


class LogsMetrics:
    """The method `log` of a Pace and of references. All wrapped models of a worker share its MetricLog."""

    steps: int

    @cached_property
    def metrics(self) -> MetricLog:
        return MetricLog()

    def log(self, *, step: int | None = None, **values: Any) -> None:
        """Keep figures for the record: pace.log(loss=loss, accuracy=0.91). `step` is the number of updates so far.

        A value is a number or a tensor with one element. The record has the mean over the ranks that logged a name.
        """
        self.metrics.log(self.steps if step is None else step, values)
