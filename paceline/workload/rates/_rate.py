"""Common parts of learning rate schedules: a base rate, and a warm-up that is linear in time.

    rate(t) = base x global batch / 256 x (first + (1 - first) t / warmup)     t < warmup, in epochs
            = base x global batch / 256 x shape(t)                             after it

Without `base`, the rate of the optimizer takes the place of base x global batch / 256.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import BadMember
from paceline.menu.menu import Member

SAMPLES = 256  # samples of the global batch that the base rate is for


@dataclass(frozen=True)
class Rate(Member):
    """A learning rate as a function of time in epochs."""

    name: ClassVar[str]

    base: float = 0.0
    warmup: float = 0.0
    first: float = 0.0

    def __post_init__(self) -> None:
        if self.base < 0 or self.warmup < 0 or not 0 <= self.first <= 1:
            raise BadMember(f"{self}", why="base and warmup are not negative, and first is between 0 and 1")

    def rate(self, own: float, global_batch: int, time: float, epochs: int) -> float:
        """Return the rate at a time in epochs. `own` is the rate of the optimizer."""
        full = self.base * (global_batch / SAMPLES) if self.base else own
        if time < self.warmup:
            return full * (self.first + (1 - self.first) * time / self.warmup)
        return full * self.shape(time, epochs)

    def shape(self, time: float, epochs: int) -> float:
        """Return the fraction of the full rate at a time after warm-up."""
        raise NotImplementedError
