"""The seam of sources: where batches come from.

indexable   samples by id, in an Order that the run owns: the same sequence for any number of workers, resumable
stream      batches as they arrive: nobody knows what comes next, so order and resuming are not promised
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from paceline.types import View, Workload
from paceline.workload.objects.bucket import Counts
from paceline.workload.order import Order

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

    @property
    def constant(self) -> bool:
        """Whether every step sees one batch that is made once and stays on the device."""

    def fit(self) -> Mapping[str, int]:
        """Settings with which a model takes its samples; empty where the workload makes them. Loads no torch."""

    def order(self, global_batch: int, seed: int) -> Order:
        """The order of its samples in a run. Loads no torch."""

    def samples_of(self, workload: Workload) -> Samples:
        """The training part."""

    def tests(self) -> Samples | None:
        """The test part, if it has one."""


@runtime_checkable
class Counted(Protocol):
    """A source that may read from an object store."""

    def counts(self) -> Counts | None:
        """Requests so far; None where there is no store."""


class Stream(Protocol):
    """An open stream."""

    def take(self) -> Any:
        """The next batch; waits for it. Raises if none can come."""

    def close(self) -> None: ...


@runtime_checkable
class Streaming(Protocol):
    """A source of kind stream: it has no order, so nothing can be resumed."""

    @property
    def inner(self) -> Source | None:
        """The source whose batches it hands on, if that is known here."""

    def open(self, view: View, settings: Mapping[str, Any]) -> Stream:
        """Begin to receive, on one rank. Settings are those of the run that a producer needs, and `batch`."""
