"""Synthetic samples that the workload computes from ids, without files or network.

fake          one batch, made once and kept on the device; every step sees it again
fake(cpu)     a fresh batch per step, made on the host from its ids and moved to the device
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.errors import BadMember
from paceline.menu.menu import Member
from paceline.types import Workload
from paceline.workload.order import Permuted

if TYPE_CHECKING:
    from torch import Tensor

MOST = 1 << 27  # most samples; their order takes 1 GB of memory


@dataclass(frozen=True)
class Fake(Member):
    name: ClassVar[str] = "fake"
    kind: ClassVar[str] = "indexable"

    location: str = "device"
    samples: int = 65536

    def __post_init__(self) -> None:
        if self.location not in ("device", "cpu"):
            raise BadMember(f"fake({self.location})", why=f"location takes device or cpu; got {self.location}")
        if not 1 <= self.samples <= MOST:
            raise BadMember(
                f"fake(samples={self.samples})", why=f"a source has at least one sample and at most {MOST:,}"
            )

    def fit(self) -> dict[str, int]:
        """Return no settings: the workload makes its own samples, which always fit."""
        return {}

    def tests(self) -> None:
        """Return None: there are no test samples."""

    @property
    def constant(self) -> bool:
        return self.location == "device"

    def order(self, global_batch: int, seed: int) -> Permuted:
        return Permuted(self.samples, global_batch, seed)

    def samples_of(self, workload: Workload) -> FakeSamples:
        return FakeSamples(workload, self.samples)


@dataclass(frozen=True)
class FakeSamples:
    """Samples that the workload makes from their ids."""

    workload: Workload
    count: int

    def __len__(self) -> int:
        return self.count

    def __call__(self, ids: Tensor) -> Any:
        return self.workload.batch(ids)
