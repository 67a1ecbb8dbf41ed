"""The seam of sources: where batches come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from paceline.types import Cursor, View, Workload

if TYPE_CHECKING:
    from torch import Tensor


class Samples(Protocol):
    """Samples by number: samples(ids) is the batch with these ids, on the CPU."""

    def __len__(self) -> int: ...

    def __call__(self, ids: Tensor) -> Any: ...


class Source(Protocol):
    """Where batches come from."""

    name: ClassVar[str]
    kind: ClassVar[str]  # "indexable" or "stream"

    def epoch(self, global_batch: int) -> int:
        """Global batches in one epoch."""

    def fit(self) -> Mapping[str, int]:
        """Settings with which a model takes its samples; empty where the workload makes them. Loads no torch."""

    def tests(self) -> Samples | None:
        """The test part, if it has one."""

    def batches(
        self,
        workload: Workload,
        view: View,
        global_batch: int,
        cursor: Cursor,
        to_device: Callable[[Any], Any],
    ) -> Iterator[Any]: ...
