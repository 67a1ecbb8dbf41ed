"""The seams: what each family promises to the machinery, and the machinery to each family.

A member (Rule, Exchange, ...) is a frozen value with traits and costs, free of torch until used. Binding it
to a run gives the object with state: an exchange joined to a comm is a Channel, a compressor bound to an
arena is a Codec, a rule bound to an engine is a Duty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from paceline.comm.transport import Comm, Work
from paceline.types import (
    Chunk,
    Cluster,
    Flow,
    Lane,
    Layout,
    Mixing,
    Plan,
    Profile,
    Seconds,
    Slot,
    Spent,
    Unit,
    View,
)

if TYPE_CHECKING:
    from torch import Tensor


class Schedule(Protocol):
    """Where the arena is cut, in which order chunks leave."""

    name: ClassVar[str]
    decouples: ClassVar[bool]  # asks the exchange for two phases: reduce-scatter, then all-gather
    measures: ClassVar[bool]  # plans with layer times and a link, measured in the first steps
    one_chunk: ClassVar[bool]  # everything travels as one chunk

    @property
    def crosses_step(self) -> bool:
        """Whether parameters of a step may still be under way while the next forward runs."""

    @property
    def cuts_tensors(self) -> bool:
        """Whether a cut may lie inside a tensor."""

    @property
    def credit_bytes(self) -> int:
        """Bytes that may be under way at once, where the order is decided as chunks leave."""

    def plan(self, profile: Profile, seconds: Seconds) -> Plan:
        """Where an arena is cut; `seconds(n)` is the time that n bytes take."""

    def candidates(self) -> Sequence[Schedule]:
        """Schedules to try for a few steps each; empty where there is nothing to try."""


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
    """Tensor to smaller payload and back. The meaning of each trait is in strategy/compressors/traits.py."""

    name: ClassVar[str]
    contractive: ClassVar[bool]
    shrinks: ClassVar[bool]
    remembers: ClassVar[bool]
    takes_momentum: ClassVar[bool]

    @property
    def biased(self) -> bool: ...

    @property
    def loss(self) -> str: ...

    @property
    def summable(self) -> bool: ...

    @property
    def aligned(self) -> bool: ...

    @property
    def merges(self) -> bool: ...

    @property
    def wrapped(self) -> Compressor | None: ...

    @property
    def varies(self) -> str: ...

    def check(self, slots: Sequence[Slot]) -> None:
        """Refuse a model with these tensors; called once, where all of them are known."""

    def scaled(self) -> Compressor:
        """The compressor to use beside a loss scale, whose infinities must arrive."""

    def nbytes(self, layout: Layout, chunk: Chunk) -> int:
        """Bytes that one rank offers of a chunk, over all rounds; of `pass`, one message."""

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
    asynchronous: ClassVar[bool]  # takes what has arrived instead of waiting for this step's
    shares_results: ClassVar[bool]  # fills one memory for all ranks where the comm offers that
    mixes_once: ClassVar[bool]  # every rank mixes what it receives by itself, and rounds once

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
        """The part of these bytes that comes from other nodes."""


class Costed(Exchange, Protocol):
    """An exchange of the menu: its costs are known before anybody joins it, and traits say what it goes with.

    Where a chunk goes may depend on those before it; then `placing(cluster)` has `traffic` for chunks in their order.
    """

    takes_topology: ClassVar[bool]
    one_call: ClassVar[bool]  # a phase is one call of the comm, so that units may leave in any common order
    gathers: ClassVar[bool]  # carries payloads that cannot be summed
    one_sum: ClassVar[bool]  # a chunk is one sum of the comm, which a library may add in the dtype that travels
    by_owner: ClassVar[bool]  # pieces go straight to their owners and back

    @property
    def dedicated(self) -> bool:
        """Whether it has servers, and they alone own what is exchanged."""

    @property
    def topology(self) -> Topology | None:
        """Return the topology of an exchange among neighbors, or None if all ranks take part."""

    def with_topology(self, topology: Topology) -> Costed:
        """The same exchange among other neighbors, where it takes a topology."""

    def decoupled(self) -> Exchange | None:
        """The same exchange in two phases, reduce-scatter and all-gather; None if it has no such form."""

    def placing(self, cluster: Cluster) -> Priced:
        """The value that is asked for the traffic of a run's chunks, one after another."""

    def traffic(self, nbytes: int, cluster: Cluster, step: int = 0) -> Sequence[Flows]:
        """The rounds of one chunk at a step."""

    def period(self, cluster: Cluster) -> int:
        """Steps after which traffic repeats itself."""


class Priced(Protocol):
    """What declares the rounds of chunks: an exchange, or one that places chunk after chunk."""

    def traffic(self, nbytes: int, cluster: Cluster, step: int = 0) -> Sequence[Flows]:
        """The rounds of one chunk at a step."""


class Topology(Protocol):
    """The neighbors that each rank mixes with, and their weights, at each step."""

    name: ClassVar[str]
    changes: ClassVar[bool]  # rows differ from step to step

    @property
    def directed(self) -> bool:
        """Whether a rank may send to one that does not send back."""

    def row(self, rank: int, view: View, step: int) -> Mixing: ...

    def period(self, size: int, nodes: int = 1) -> int:
        """Steps after which rows repeat themselves."""

    def symmetric(self, size: int, nodes: int = 1) -> bool: ...

    def doubly_stochastic(self, size: int, nodes: int = 1) -> bool: ...

    def check(self, size: int, nodes: int = 1) -> None:
        """Raise WrongCommand if it cannot have this many ranks on this many nodes."""

    def note(self, size: int, nodes: int = 1) -> str | None:
        """A remark for the user about this topology on so many ranks."""


class Duty(Protocol):
    """A rule bound to a model, an optimizer and an engine: what happens at each point of a step."""

    averages_gradients: bool
    waits_in_backward: bool  # p.grad is the mean gradient when backward returns
    refusal: Any  # the error of a bare optimizer.step(), where it cannot be what step() does; else None

    @property
    def exchanged(self) -> bool:
        """Whether p.grad is the mean of this step already."""

    @property
    def under_way(self) -> bool:
        """Whether gradients have left for a step whose exchange has not ended."""

    def begin(self) -> None:
        """A step begins; forward is about to run."""

    def on_grad(self, parameter: Tensor) -> None:
        """Backward has finished the gradient of a parameter."""

    def on_held(self, parameter: Tensor) -> None:
        """The same where several models exchange one after another, at the end of backward or in step()."""

    def on_local(self, parameter: Tensor) -> None:
        """The same where gradients only add up on this rank for now."""

    def end(self) -> None:
        """Backward is over; called if `waits_in_backward`."""

    def leave(self) -> None:
        """Backward is over: what leaves now, leaves."""

    def wait(self) -> None:
        """Until what must be back is back."""

    def sound(self) -> bool:
        """Whether this step may be committed; the same answer on every rank."""

    def update(self) -> None: ...

    def update_with(self, closure: Callable[[], Any], fresh: bool) -> Any:
        """Let an optimizer that evaluates the model again do so; `fresh` forgets gradients before each evaluation."""

    def keep(self) -> None:
        """Move gradients that somebody may still read away from memory that is about to be written."""

    def release(self) -> None:
        """Forget the gradients of this step."""

    def synchronize(self) -> None: ...

    def finish(self) -> None:
        """Until no update of a past step is outstanding."""

    def close(self) -> None:
        """The model is left alone from now on."""

    def discard(self) -> None:
        """Forget what has left for the step that was about to begin."""

    def take_spent(self) -> Spent:
        """The time that waiting and updating took outside of step(), since the last call."""

    def staleness(self) -> Mapping[str, Any]:
        """When gradients left and parameters were back, where a worker may be ahead of others; otherwise empty."""

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Rule(Protocol):
    """What leaves a worker, when it may leave and when it must be back."""

    name: ClassVar[str]
    lanes: ClassVar[tuple[Lane, ...]]
    leaves: ClassVar[str]  # "backward", "begin" or "update"
    needs: ClassVar[str]  # of the exchange: "consensus", "doubly stochastic", "symmetric", "neighbors" or "servers"
    averages_gradients: ClassVar[bool]  # every rank applies the mean gradient

    @property
    def same_result(self) -> bool:
        """Whether training ends where one process on all batches ends."""

    @property
    def bound(self) -> int | None: ...
    @property
    def intervals(self) -> tuple[int, ...]:
        """Steps between two exchanges, one number for each kind of exchange."""

    @property
    def period(self) -> int:
        """Steps after which the rule repeats itself."""

    def bind(self, context: Any) -> Duty: ...


class Presence(Protocol):
    """This rank's membership in a running group: a step begins with a view and ends with a vote."""

    @property
    def comm(self) -> Comm:
        """The comm of the group that `begin` returned last."""

    def begin(self) -> View:
        """Return who takes part in the next step. A new generation has another comm, which the engines must enter."""

    def commit(self, ok: bool) -> bool: ...


class Membership(Protocol):
    """The members of the group at each step."""

    name: ClassVar[str]
    elastic: ClassVar[bool]

    def join(self, comm: Comm) -> Presence: ...
