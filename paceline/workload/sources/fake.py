"""Synthetic samples that the workload computes from ids, without files or network.

fake          one batch, made once and kept on the device; every step sees it again
fake(cpu)     a fresh batch per step, made on the host from its ids and moved to the device
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, ClassVar

from paceline.errors import BadMember
from paceline.menu.menu import Member
from paceline.types import Cursor, View, Workload
from paceline.workload.order import batches_per_epoch, ids_of, walk

MOST = 1 << 27  # samples; their order needs 1 GB


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

    def epoch(self, global_batch: int) -> int:
        return batches_per_epoch(self.samples, global_batch)

    def batches(
        self,
        workload: Workload,
        view: View,
        global_batch: int,
        cursor: Cursor,
        to_device: Callable[[Any], Any],
    ) -> Iterator[Any]:
        """Yield this rank's batches from the cursor on, without end."""
        if self.location == "cpu":
            ids = walk(view, global_batch, cursor, self.samples)
            return (to_device(workload.batch(share)) for share in ids)
        # always the first batch of the first epoch, so that a resumed run uses the same one
        first = ids_of(view, global_batch, Cursor(seed=cursor.seed), self.samples)
        return repeat(to_device(workload.batch(first)))
