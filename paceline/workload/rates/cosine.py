"""Half a cosine from the full rate down to `end`, over the epochs after warm-up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from paceline.workload.rates._rate import Rate


@dataclass(frozen=True)
class Cosine(Rate):
    name: ClassVar[str] = "cosine"

    end: float = 0.0

    def shape(self, time: float, epochs: int) -> float:
        part = min(1.0, (time - self.warmup) / max(epochs - self.warmup, 1e-9))
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * part)) / 2
