"""The seams: what each family promises to the machinery, and the machinery to each family.

A member (Rule, Exchange, ...) is a frozen value with traits and costs, free of torch until used. Binding it
to a run gives the object with state: an exchange joined to a comm is a Channel, a compressor bound to an
arena is a Codec, a rule bound to an engine is a Duty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from paceline.types import (
    Chunk,
    Cluster,
    Cursor,
    Flow,
    Lane,
    Layout,
    Plan,
    Profile,
    Seconds,
    Unit,
    View,
    Workload,
)

if TYPE_CHECKING:
    from torch import Tensor


class Work(Protocol):
    """Something under way. Every wait has a deadline in seconds and names the rank it waited for."""

    def wait(self, deadline: float | None = None) -> None: ...

    def done(self) -> bool: ...


class Comm(Protocol):
    """What moves bytes among ranks. Collectives are called in one order on all ranks.

    `key` says in an error what was under way; it has no other meaning.
    """

    rank: int
    size: int
    placement: tuple[int, ...]
    shares_results: bool  # whether allocate_result is one memory for several ranks

    def allocate(self, numel: int, dtype: Any) -> Tensor:
        """A vector of this rank whose collectives need no staging copy. Collective."""

    def allocate_result(self, numel: int, dtype: Any) -> Tensor:
        """A vector for results; on shm it is one memory for all ranks of the host, so only read it. Collective."""

    def all_sum(self, src: Tensor, dst: Tensor, key: object = "") -> Work: ...

    def reduce_scatter(self, src: Tensor, dst: Tensor, key: object = "") -> Work: ...

    def all_gather(self, src: Tensor, dst: Tensor, key: object = "") -> Work: ...

    def broadcast(self, tensor: Tensor, root: int = 0, key: object = "") -> Work: ...

    def barrier(self, deadline: float | None = None) -> None: ...

    def progress(self) -> None:
        """Do what can be done now without waiting; a comm that progresses by itself does nothing."""

    def received(self) -> tuple[int, ...]:
        """Bytes that this rank got from each rank so far."""

    def close(self, failure: str = "") -> None: ...


class Schedule(Protocol):
    """Where the arena is cut, in which order chunks leave."""

    name: ClassVar[str]
    crosses_step: ClassVar[bool]

    def plan(self, profile: Profile, seconds: Seconds) -> Plan: ...


class Payload(NamedTuple):
    """One round on the wire: the tensor that leaves, how it is combined, and where the outcome goes."""

    combine: str  # "sum" or "gather"
    tensor: Tensor
    out: Tensor


# A codec yields payloads; it goes on when `out` of the last one is there, and ends when dst is written.
Rounds = Iterator[Payload]


class Codec(Protocol):
    """A compressor bound to one arena; keeps residuals and the like in arena coordinates."""

    def rounds(self, chunk: Chunk, src: Tensor, dst: Tensor) -> Rounds: ...

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Compressor(Protocol):
    """Tensor to smaller payload and back."""

    name: ClassVar[str]
    loss: ClassVar[str]  # "none", "rounding" or "lossy"
    summable: ClassVar[bool]
    biased: ClassVar[bool]
    contractive: ClassVar[bool]
    aligned: ClassVar[bool]  # needs whole tensors

    def nbytes(self, layout: Layout, chunk: Chunk) -> int: ...

    def bind(self, layout: Layout, comm: Comm, dtype: Any) -> Codec | None:
        """None means that chunks travel as they are."""


class Channel(Protocol):
    """An exchange joined to a comm: starts units and says when their results are there."""

    def start(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor, codec: Codec | None) -> Work: ...

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Exchange(Protocol):
    """How one chunk is combined among ranks, and what that costs."""

    name: ClassVar[str]
    consensus: ClassVar[bool]
    phases: ClassVar[int]
    takes_topology: ClassVar[bool]

    def join(self, comm: Comm, view: View) -> Channel: ...

    def traffic(self, nbytes: int, cluster: Cluster) -> Sequence[Sequence[Flow]]: ...


class Duty(Protocol):
    """A rule bound to a model, an optimizer and an engine: what happens at each point of a step."""

    def begin(self) -> None: ...

    def on_grad(self, slot: int) -> None: ...

    def on_back(self, chunk: Chunk) -> None: ...

    def update(self) -> None: ...

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Rule(Protocol):
    """What leaves a worker, when it may leave and when it must be back."""

    name: ClassVar[str]
    lanes: ClassVar[tuple[Lane, ...]]
    leaves: ClassVar[str]  # "backward", "begin" or "update"
    due: ClassVar[str]  # "update" or "forward"


class Presence(Protocol):
    """This rank's membership in a running group: a step begins with a view and ends with a vote."""

    def begin(self) -> View: ...

    def commit(self, ok: bool) -> bool: ...


class Membership(Protocol):
    """Who is in the group for this step."""

    name: ClassVar[str]
    elastic: ClassVar[bool]

    def join(self, view: View) -> Presence: ...


class Source(Protocol):
    """Where batches come from."""

    name: ClassVar[str]
    kind: ClassVar[str]  # "indexable" or "stream"

    def epoch(self, global_batch: int) -> int:
        """Global batches in one epoch."""

    def batches(
        self,
        workload: Workload,
        view: View,
        global_batch: int,
        cursor: Cursor,
        to_device: Callable[[Any], Any],
    ) -> Iterator[Any]: ...


class Job(Protocol):
    """Processes that a launcher started. `failures` lists who ended badly, the cause first."""

    failures: Sequence[Any]

    def wait(self) -> None: ...

    def stop(self) -> None: ...
