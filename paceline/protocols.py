"""The seams: what each family promises to the machinery, and the machinery to each family.

A member (Rule, Exchange, ...) is a frozen value with traits and costs, free of torch until used. Binding it
to a run gives the object with state: an exchange joined to a comm is a Channel, a compressor bound to an
arena is a Codec, a rule bound to an engine is a Duty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from paceline.transport import Comm, Work
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


class Schedule(Protocol):
    """Where the arena is cut, in which order chunks leave."""

    name: ClassVar[str]
    crosses_step: ClassVar[bool]  # parameters may still be under way while the next forward runs
    decouples: ClassVar[bool]  # asks the exchange for two phases: reduce-scatter, then all-gather
    measures: ClassVar[bool]  # plans with layer times and a link, measured in the first steps
    cuts_tensors: ClassVar[bool]  # a cut may lie inside a tensor
    one_chunk: ClassVar[bool]  # everything travels as one chunk

    @property
    def credit_bytes(self) -> int:
        """Bytes that may be under way at once, where the order is decided as chunks leave."""

    def plan(self, profile: Profile, seconds: Seconds) -> Plan: ...


class Payload(NamedTuple):
    """One round on the wire: the tensor that leaves, how it is combined, and where the outcome goes.

    sum      out is the sum of every rank's tensor
    gather   out is every rank's tensor, in rank order
    pass     the tensor goes to rank `target`, out is that of rank `source`; without a source, the own one
    """

    combine: str
    tensor: Tensor
    out: Tensor
    source: int | None = None
    target: int | None = None


class Wire(NamedTuple):
    """What one round costs: how payloads are combined, bytes of one rank's, and of "pass" who hands to whom."""

    combine: str
    nbytes: int
    pairs: tuple[tuple[int, int], ...] = ()


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

    def nbytes(self, layout: Layout, chunk: Chunk) -> int:
        """What one rank offers of a chunk, over all rounds; of `pass`, one message."""

    def wires(self, layout: Layout, chunk: Chunk, size: int) -> Sequence[Wire]:
        """The rounds of a chunk among `size` ranks, in order."""

    def bind(self, layout: Layout, comm: Comm, dtype: Any, shared: bool) -> Codec | None:
        """None means that chunks travel as they are; `shared` that combined payloads are one memory for all ranks."""


class Channel(Protocol):
    """An exchange joined to a comm: starts units and says when their results are there."""

    memory: Any  # the comm that sources and results are allocated from

    def start(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor, codec: Codec | None) -> Work: ...

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Exchange(Protocol):
    """How one chunk is combined among ranks."""

    name: ClassVar[str]
    phases: ClassVar[int]
    takes_topology: ClassVar[bool]
    asynchronous: ClassVar[bool]  # whether it takes what has arrived instead of waiting for this step's
    shares_results: ClassVar[bool]  # whether it fills one memory for all ranks where the comm offers that
    one_call: ClassVar[bool]  # whether a phase is one call of the comm, so that units may leave in any common order
    gathers: ClassVar[bool]  # whether it carries payloads that cannot be summed

    @property
    def servers(self) -> int:
        """Processes that it needs beside the workers."""

    @property
    def consensus(self) -> bool:
        """Whether all ranks end with the same sum; otherwise each has its own weighted mean."""

    def check(self, cluster: Cluster) -> None:
        """Refuse a cluster that it does not fit."""

    def join(self, comm: Comm, view: View, lane: Lane) -> Channel: ...


class Flows(Protocol):
    """The flows of one round. There may be as many as pairs of ranks: sums list none of them, iterating lists all."""

    def __iter__(self) -> Iterator[Flow]: ...

    def received(self) -> Mapping[int, int]:
        """Bytes into each rank; servers are ranks after the workers."""

    def crossing(self) -> Mapping[int, int]:
        """Of these, what comes from other nodes."""


class Costed(Exchange, Protocol):
    """An exchange of the menu: what it costs is known before anybody joins it.

    Where a chunk goes may depend on those before it; then `placing(cluster)` has `traffic` for chunks in their order.
    """

    def traffic(self, nbytes: int, cluster: Cluster, step: int = 0) -> Sequence[Flows]:
        """The rounds of one chunk at a step."""

    def period(self, cluster: Cluster) -> int:
        """Steps after which traffic comes again."""


class Duty(Protocol):
    """A rule bound to a model, an optimizer and an engine: what happens at each point of a step."""

    averages_gradients: bool

    def begin(self) -> None:
        """A step begins; forward is about to run."""

    def on_grad(self, parameter: Tensor) -> None:
        """Backward has finished the gradient of a parameter."""

    def on_held(self, parameter: Tensor) -> None:
        """The same where gradients leave in step() only."""

    def leave(self) -> None:
        """Backward is over: what leaves now, leaves."""

    def wait(self) -> None:
        """Until what must be back is back."""

    def sound(self) -> bool:
        """Whether this step may be committed; the same answer on every rank."""

    def update(self) -> None: ...

    def update_with(self, closure: Callable[[], Tensor]) -> None:
        """Let an optimizer that evaluates the model again do so."""

    def synchronize(self) -> None: ...

    def finish(self) -> None:
        """Until no update of a past step is outstanding."""

    def close(self) -> None:
        """The model is left alone from now on."""

    def discard(self) -> None:
        """Forget what has left for the step that was about to begin."""

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Rule(Protocol):
    """What leaves a worker, when it may leave and when it must be back."""

    name: ClassVar[str]
    lanes: ClassVar[tuple[Lane, ...]]
    leaves: ClassVar[str]  # "backward", "begin" or "update"
    same_result: bool  # as one process on all batches
    needs: ClassVar[str]  # of the exchange: "consensus", "doubly stochastic", "symmetric", "neighbors" or "servers"

    def bind(self, context: Any) -> Duty: ...


class Presence(Protocol):
    """This rank's membership in a running group: a step begins with a view and ends with a vote."""

    def begin(self) -> View: ...

    def commit(self, ok: bool) -> bool: ...


class Membership(Protocol):
    """Who is in the group for this step."""

    name: ClassVar[str]
    elastic: ClassVar[bool]

    def join(self, view: View) -> Presence: ...


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
