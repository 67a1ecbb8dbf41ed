"""The seams: what each family promises to the machinery, and the machinery to each family.

A member (Rule, Exchange, ...) is a frozen value with traits and costs, free of torch until used. Binding it
to a run gives the object with state: an exchange joined to a comm is a Channel, a compressor bound to an
arena is a Codec, a rule bound to an engine is a Duty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from paceline.types import (
    Chunk,
    Cluster,
    Cursor,
    Flow,
    Lane,
    Layout,
    Mixing,
    Piece,
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
    """Something under way. Every wait has a deadline in seconds and names the rank it waited for.

    A work may say more, and whoever asks takes `done` where it does not: `landed()` only looks and moves nothing,
    `round_done()` is about the round under way of a work that has several.
    """

    def wait(self, deadline: float | None = None) -> None: ...

    def done(self) -> bool: ...


class Buffers(Protocol):
    """One-sided memory of one window: every rank owns one buffer per source, and its own value for those who get.

    Nobody but a lock is waited for. Reads and writes of one buffer never overlap, so that what lies in one buffer
    is never torn. Ranks are those of the comm.
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]

    def empty(self) -> Tensor:
        """A vector of zeros of the window's length and dtype."""

    def show(self, tensor: Tensor) -> None:
        """This is what others get from now on."""

    def put(self, target: int, tensor: Tensor, weight: float = 1.0) -> Work:
        """This rank's buffer on the target becomes weight x tensor."""

    def accumulate(self, target: int, tensor: Tensor, weight: float = 1.0) -> Work:
        """This rank's buffer on the target grows by weight x tensor."""

    def get(self, source: int, weight: float = 1.0) -> Work:
        """The buffer for a source becomes weight x what the source shows."""

    def fold(self, source: int, into: Tensor, weight: float = 1.0, *, clear: bool = False) -> bool:
        """into += weight x the buffer for a source, if anything came since it was cleared; says whether."""

    def versions(self) -> dict[int, int]:
        """How often each buffer was written since this rank last folded it."""

    def mutex(self, rank: int, deadline: float | None = None) -> AbstractContextManager[None]:
        """A lock of each rank that means what its users agree on."""

    def free(self) -> None:
        """Collective."""


class Board(Protocol):
    """Numbers that rank 0 says and the others hear, in order and apart from all collectives."""

    def say(self, value: int) -> None: ...

    def expect(self, count: int) -> None:
        """So many more will be said: those who hear may get ready for them."""

    def heard(self) -> int | None:
        """The next number, if it is there."""

    def hear(self, key: object = "", deadline: float | None = None) -> int:
        """The next number, waited for."""


class Comm(Protocol):
    """What moves bytes among ranks. Collectives are called in one order on all ranks.

    `key` says in an error what was under way; it has no other meaning.
    """

    rank: int
    size: int
    placement: tuple[int, ...]
    deadline: float  # seconds that a wait takes at most, unless it is told otherwise
    shares_results: bool  # whether allocate_result is one memory for several ranks
    service: Any  # the way to the servers of the job (comm/service.py), or None

    def allocate(self, numel: int, dtype: Any, givers: int | None = None) -> Tensor:
        """A vector of this rank whose collectives need no staging copy; only the first `givers` ranks get one of
        their own. Collective."""

    def allocate_result(self, numel: int, dtype: Any, givers: int | None = None) -> Tensor:
        """A vector for results; on shm it is one memory for all ranks of the host, so only read it. Collective."""

    def all_sum(self, src: Tensor, dst: Tensor, key: object = "") -> Work: ...

    def reduce_scatter(self, src: Tensor, dst: Tensor, key: object = "") -> Work: ...

    def sum_by(
        self,
        src: Tensor,
        dst: Tensor,
        pieces: Sequence[Piece],
        givers: int,
        key: object = "",
        combine: Callable[[Tensor, Sequence[Tensor], int], None] = ...,
    ) -> Work:
        """dst = the sum of the first `givers` ranks' src, each piece added (or combined) by its owner."""

    def all_gather(self, src: Tensor, dst: Tensor, key: object = "") -> Work: ...

    def broadcast(self, tensor: Tensor, root: int = 0, key: object = "") -> Work: ...

    def barrier(self, deadline: float | None = None) -> None: ...

    def mix(self, src: Tensor, dst: Tensor, mixing: Mixing, key: object = "") -> Work:
        """dst = keep x src + the weighted src of other ranks, who must name this rank as a target."""

    def window(self, numel: int, dtype: Any, sources: Sequence[Sequence[int]], shows: bool = True) -> Buffers:
        """One-sided memory: sources[r] may write to rank r. Without `shows` nothing can be got. Collective."""

    def split(self, groups: Sequence[Sequence[int]]) -> Comm:
        """The comm of this rank's group. Groups cover all ranks; ranks are positions in the group. Collective."""

    def board(self, length: int) -> Board:
        """Where rank 0 says what all do next; it is ahead of nobody by more than `length` numbers. Collective."""

    def progress(self) -> None:
        """Do what can be done now without waiting; a comm that progresses by itself does nothing."""

    def received(self) -> tuple[int, ...]:
        """Bytes that this rank got from each rank so far."""

    def get_ready(self) -> None:
        """Take now what would be taken on first use. Collective."""

    def excuse(self, rank: int) -> str | None:
        """Why a rank will not answer any more, where the comm can tell without waiting."""

    def close(self, failure: str = "") -> None: ...


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
