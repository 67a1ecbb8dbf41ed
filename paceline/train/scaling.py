"""Loss scaling for fp16: gradients are computed on a scaled loss, and a step that overflowed is skipped.

The mean gradient is the same on every rank, and so is the decision to skip.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LossScale:
    """Halve after an overflow, double after `patience` good steps."""

    value: float = 2.0**16
    patience: int = 2000
    good: int = 0
    skipped: int = 0

    def record(self, finite: bool) -> None:
        if not finite:
            self.value, self.good = max(1.0, self.value / 2), 0
            self.skipped += 1
            return
        self.good += 1
        if self.good >= self.patience:
            self.value, self.good = self.value * 2, 0

    def state(self) -> dict[str, float]:
        return {"value": self.value, "good": self.good, "skipped": self.skipped}

    def restore(self, state: dict[str, float]) -> None:
        self.value, self.good, self.skipped = state["value"], int(state["good"]), int(state["skipped"])
