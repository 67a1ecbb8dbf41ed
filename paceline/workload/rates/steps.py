"""Multiply the rate by a factor at some epochs: steps(at=30/60/80), the published schedule for ImageNet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import BadMember
from paceline.workload.rates._rate import Rate


@dataclass(frozen=True)
class Steps(Rate):
    name: ClassVar[str] = "steps"

    at: str = "30/60/80"
    factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            epochs = self.epochs
        except ValueError:
            epochs = (-1.0,)
        if list(epochs) != sorted(set(epochs)) or epochs[0] < 0 or self.factor <= 0:
            raise BadMember(f"{self}", why="at takes rising epochs such as 30/60/80, and factor is above 0")

    @property
    def epochs(self) -> tuple[float, ...]:
        return tuple(float(part) for part in self.at.split("/"))

    def shape(self, time: float, epochs: int) -> float:
        return self.factor ** sum(time >= start for start in self.epochs)
