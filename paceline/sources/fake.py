"""Samples that the workload makes from ids: no files, no network.

fake          one batch, made once and kept on the device; every step sees it again
fake(cpu)     a fresh batch per step, made on the host from its ids and moved to the device
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, ClassVar

from paceline.errors import BadMember
from paceline.menu import Member
from paceline.sources.order import batches_per_epoch, ids_of, walk
from paceline.types import Cursor, View, Workload


@dataclass(frozen=True)
class Fake(Member):
    name: ClassVar[str] = "fake"
    kind: ClassVar[str] = "indexable"

    location: str = "device"
    samples: int = 65536

    def __post_init__(self) -> None:
        if self.location not in ("device", "cpu"):
            raise BadMember(f"fake({self.location})", why=f"location takes device or cpu; got {self.location}")
        if self.samples < 1:
            raise BadMember(f"fake(samples={self.samples})", why="a source has at least one sample")

    def fit(self) -> dict[str, int]:
        """The workload makes the samples, so they fit."""
        return {}

    def tests(self) -> None:
        """A workload makes no samples to be tested on."""

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
        """This rank's batches without an end, from the cursor on."""
        if self.location == "cpu":
            ids = walk(view, global_batch, cursor, self.samples)
            return (to_device(workload.batch(share)) for share in ids)
        # the first batch of the first epoch, wherever the cursor is, so that a resumed run sees the same one
        first = ids_of(view, global_batch, Cursor(seed=cursor.seed), self.samples)
        return repeat(to_device(workload.batch(first)))
