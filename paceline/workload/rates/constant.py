"""The same rate all the time, after warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.workload.rates._rate import Rate


@dataclass(frozen=True)
class Constant(Rate):
    name: ClassVar[str] = "constant"

    def shape(self, time: float, epochs: int) -> float:
        return 1.0
