"""Loss scaling for fp16: gradients are computed from a scaled loss, and a step that overflowed is skipped.

The mean gradient is the same on every rank, and so is the decision to skip. The scale changes like that of
torch.amp.GradScaler, and may fall below 1. When it is almost zero, no scale helps, and training ends with an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import NonFinite

LEAST = 2.0**-126  # smaller float32 numbers are subnormal and lose digits
MOST = 2.0**127  # twice that is infinity in float32


@dataclass
class LossScale:
    """A loss scale that is halved after an overflow and doubled after `patience` good steps."""

    value: float = 2.0**16
    patience: int = 2000
    good: int = 0
    skipped: int = 0

    def record(self, finite: bool) -> None:
        if not finite:
            self.value, self.good = self.value / 2, 0
            self.skipped += 1
            self._check()
            return
        self.good += 1
        if self.good >= self.patience:
            self.value, self.good = self.value * 2 if self.value < MOST else self.value, 0

    def _check(self) -> None:
        if self.value < LEAST:
            raise NonFinite(
                f"the loss scale has fallen to {self.value:.2g}: {self.skipped} steps overflowed",
                why="NaN or infinity comes from the model or its batch: no scale of the loss takes it away",
                remedy="torch.autograd.set_detect_anomaly(True) to find it, a lower learning rate, or bf16",
            )

    def state(self) -> dict[str, float]:
        return {"value": self.value, "good": self.good, "skipped": self.skipped}

    def restore(self, state: dict[str, float]) -> None:
        self.value, self.good, self.skipped = state["value"], int(state["good"]), int(state["skipped"])
