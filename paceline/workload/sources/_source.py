"""The protocols of sources, which provide batches.

indexable   samples by id, in an Order that the run owns: the same sequence for any number of workers, resumable
stream      batches as they arrive: the next one is not known, so there is no fixed order and no resuming
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
    """Samples by id: samples(ids) returns the batch with these ids, on the CPU."""

    def __len__(self) -> int: ...

    def __call__(self, ids: Tensor) -> Any: ...


class Source(Protocol):
    """A source of batches."""

    name: ClassVar[str]
    kind: ClassVar[str]  # "indexable" or "stream"

    @property
    def constant(self) -> bool:
        """Whether all steps use the same batch, which stays on the device."""

    def fit(self) -> Mapping[str, int]:
        """Return the settings with which a model accepts its samples; empty if the workload makes the samples.

        Loads no torch.
        """

    def order(self, global_batch: int, seed: int) -> Order:
        """Return the order of its samples in a run. Loads no torch."""

    def samples_of(self, workload: Workload) -> Samples:
        """Return the training samples."""

    def tests(self) -> Samples | None:
        """Return the test samples, or None."""


@runtime_checkable
class Counted(Protocol):
    """A source that may read from an object store."""

    def counts(self) -> Counts | None:
        """Return the requests so far, or None without an object store."""


@runtime_checkable
class Noted(Protocol):
    """A source that does less than its settings say."""

    def notes(self) -> tuple[str, ...]:
        """Return what a record should note."""


@runtime_checkable
class Distant(Protocol):
    """A source whose files may lie in an object store."""

    def declared(self) -> Mapping[str, int] | None:
        """The part of `fit` that is known without a look at the files; None where they lie on this machine."""


class Stream(Protocol):
    """An open stream."""

    def take(self) -> Any:
        """Wait for the next batch and return it. Raises if none can come."""

    def close(self) -> None: ...


@runtime_checkable
class Streaming(Protocol):
    """A source of kind stream: it has no order, so nothing can be resumed."""

    @property
    def inner(self) -> Source | None:
        """The source whose batches it passes on, or None if that is not known."""

    def open(self, view: View, settings: Mapping[str, Any]) -> Stream:
        """Open the stream on one rank. `settings` has `batch` and the settings of the run that a producer needs."""
