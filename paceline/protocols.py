"""Protocols between the families (rules, exchanges, ...) and the code that trains with them.

A member (Rule, Exchange, ...) is a frozen value with traits and costs. It needs no torch until it is used. Binding
it to a run creates an object with state: an exchange joined to a comm is a Channel, a compressor bound to an arena
is a Codec, a rule bound to an engine is a Duty.
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
    """Decides where an arena is cut into chunks and in which order the chunks are sent."""

    name: ClassVar[str]
    decouples: ClassVar[bool]  # needs an exchange in two phases: reduce-scatter, then all-gather
    measures: ClassVar[bool]  # plans with layer times and a link, measured in the first steps
    one_chunk: ClassVar[bool]  # everything travels as one chunk

    @property
    def crosses_step(self) -> bool:
        """Return whether the exchange of a step may still run during the forward of the next step."""

    @property
    def cuts_tensors(self) -> bool:
        """Return whether a cut may lie inside a tensor."""

    @property
    def credit_bytes(self) -> int:
        """Return how many bytes may be under way at once. Only schedules in which rank 0 picks the order use this."""

    def plan(self, profile: Profile, seconds: Seconds) -> Plan:
        """Return where to cut an arena. `seconds(n)` is the time that a message of n bytes takes."""

    def candidates(self) -> Sequence[Schedule]:
        """Return schedules to try for a few steps each; empty if there is only this one."""


class Payload(NamedTuple):
    """One round of a codec: the tensor to send, how ranks combine it, and where the result goes.

    sum      out is the sum of every rank's tensor
    gather   out is every rank's tensor, in rank order
    pass     the tensor goes to rank `target`, and out is the tensor of rank `source` (without a source, the own one)
    """

    combine: str
    tensor: Tensor
    out: Tensor
    source: int | None = None
    target: int | None = None


class Wire(NamedTuple):
    """The cost of one round: how payloads are combined, the bytes of one rank's payload, and (sender, receiver) pairs.

    Only the combination "pass" has pairs.
    """

    combine: str
    nbytes: int
    pairs: tuple[tuple[int, int], ...] = ()


# A codec yields one payload after another. It resumes when `out` of the last payload is filled, and returns when
# dst is written.
Rounds = Iterator[Payload]


class Codec(Protocol):
    """A compressor bound to one arena. It keeps its state, such as residuals, as vectors in the layout of the arena."""

    def rounds(self, chunk: Chunk, src: Tensor, dst: Tensor) -> Rounds: ...

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Compressor(Protocol):
    """Turns a tensor into a smaller payload and back. strategy/compressors/traits.py explains each trait."""

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
        """Raise WrongCommand if a model with these tensors cannot be compressed. Called once per model."""

    def scaled(self) -> Compressor:
        """Return the compressor to use with a loss scale. It must transmit infinities, which reveal an overflow."""

    def nbytes(self, layout: Layout, chunk: Chunk) -> int:
        """Return the bytes of one rank's payloads for a chunk, over all rounds; with rounds of "pass", one message."""

    def wires(self, layout: Layout, chunk: Chunk, size: int) -> Sequence[Wire]:
        """Return the costs of all rounds of a chunk among `size` ranks, in order."""

    def bind(self, layout: Layout, comm: Comm, dtype: Any, shared: bool) -> Codec | None:
        """Return the codec of one arena, or None if chunks travel uncompressed.

        `shared` is whether all ranks of a host read combined payloads from one memory.
        """


class Channel(Protocol):
    """An exchange joined to a comm. It starts units; the Work that `start` returns tells when the result is there."""

    memory: Any  # the comm that sources and results are allocated from

    def start(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor, codec: Codec | None) -> Work: ...

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Exchange(Protocol):
    """A way to combine one chunk among ranks."""

    name: ClassVar[str]
    phases: ClassVar[int]
    asynchronous: ClassVar[bool]  # uses the values that have arrived, without waiting for those of this step
    shares_results: ClassVar[bool]  # writes results into one memory for all ranks of a host, if the comm has that
    mixes_once: ClassVar[bool]  # every rank mixes what it receives by itself, and rounds only once

    @property
    def servers(self) -> int:
        """Return the number of server processes that it needs in addition to the workers."""

    @property
    def consensus(self) -> bool:
        """Return whether all ranks get the same sum. Otherwise each rank gets its own weighted mean."""

    def check(self, cluster: Cluster) -> None:
        """Raise WrongCommand if this exchange cannot run on the cluster."""

    def join(self, comm: Comm, view: View, lane: Lane) -> Channel: ...

    def decoupled(self) -> Exchange | None:
        """Return this exchange in two phases, reduce-scatter and all-gather, or None if it has no such form."""


class Flows(Protocol):
    """The flows of one round. Iterating lists every flow, possibly one per pair of ranks; the sums list none."""

    def __iter__(self) -> Iterator[Flow]: ...

    def received(self) -> Mapping[int, int]:
        """Return the bytes that each rank receives. Servers count as ranks after the workers."""

    def crossing(self) -> Mapping[int, int]:
        """Return the bytes that each rank receives from other nodes."""


class Costed(Exchange, Protocol):
    """An exchange on the menu. Its costs are known before a run starts; its traits say what it can be combined with.

    Which rank owns a chunk may depend on the chunks before it. Therefore callers ask `placing(cluster)` for the traffic
    of one chunk after another, in their order.
    """

    takes_topology: ClassVar[bool]
    one_call: ClassVar[bool]  # a phase is one call of the comm, so units may leave in any order that all ranks share
    gathers: ClassVar[bool]  # carries payloads that cannot be summed
    one_sum: ClassVar[bool]  # a chunk is one sum of the comm; a library may compute it in the dtype that travels
    by_owner: ClassVar[bool]  # pieces go straight to their owners and back

    @property
    def weighs(self) -> str:
        """Return whether each "rank" or each "node" mixes with weights that a user sets for a step; "" if none does."""

    @property
    def dedicated(self) -> bool:
        """Return whether only server processes, and no workers, own pieces of the chunks."""

    @property
    def topology(self) -> Topology | None:
        """Return the topology of an exchange among neighbors, or None if all ranks take part."""

    def with_topology(self, topology: Topology) -> Costed:
        """Return the same exchange with another topology; an exchange without a topology returns itself."""

    def placing(self, cluster: Cluster) -> Priced:
        """Return the object whose `traffic` is called for the chunks of a run, one after another."""

    def traffic(self, nbytes: int, cluster: Cluster, step: int = 0) -> Sequence[Flows]:
        """Return the rounds of one chunk of `nbytes` bytes at a step."""

    def period(self, cluster: Cluster) -> int:
        """Return the number of steps after which the traffic repeats."""


class Priced(Protocol):
    """Computes the rounds of a chunk: an exchange, or an object that assigns owners to one chunk after another."""

    def traffic(self, nbytes: int, cluster: Cluster, step: int = 0) -> Sequence[Flows]:
        """Return the rounds of one chunk of `nbytes` bytes at a step."""


class Topology(Protocol):
    """Says which neighbors each rank mixes with at each step, and with which weights."""

    name: ClassVar[str]
    changes: ClassVar[bool]  # rows differ from step to step

    @property
    def directed(self) -> bool:
        """Return whether a rank may send to a rank that does not send back."""

    def row(self, rank: int, view: View, step: int) -> Mixing: ...

    def period(self, size: int, nodes: int = 1) -> int:
        """Return the number of steps after which the rows repeat."""

    def symmetric(self, size: int, nodes: int = 1) -> bool: ...

    def doubly_stochastic(self, size: int, nodes: int = 1) -> bool: ...

    def check(self, size: int, nodes: int = 1) -> None:
        """Raise WrongCommand if the topology does not exist for this many ranks on this many nodes."""

    def note(self, size: int, nodes: int = 1) -> str | None:
        """Return a remark for the user about this topology with `size` ranks, or None."""


class Duty(Protocol):
    """A rule bound to a model, an optimizer and an engine. Its methods are called at the points of a training step."""

    averages_gradients: bool
    waits_in_backward: bool  # p.grad is the mean gradient when backward returns
    refusal: Any  # the error to raise for a bare optimizer.step() that could not do what step() does; else None

    @property
    def exchanged(self) -> bool:
        """Return whether p.grad already holds the mean gradient of this step."""

    @property
    def under_way(self) -> bool:
        """Return whether gradients of a step were sent and its exchange has not ended."""

    def begin(self) -> None:
        """Begin a step. Called before forward runs."""

    def on_grad(self, parameter: Tensor) -> None:
        """Take the gradient of a parameter. Called when backward has finished it."""

    def on_held(self, parameter: Tensor) -> None:
        """Note a finished gradient that leaves later. Called instead of on_grad if several models take turns.

        Their exchanges run one after another, at the end of backward or in step().
        """

    def on_local(self, parameter: Tensor) -> None:
        """Note a finished gradient that stays on this rank. Called instead of on_grad while gradients accumulate."""

    def end(self) -> None:
        """End a backward. Called only if `waits_in_backward`."""

    def leave(self) -> None:
        """Send what this rule sends when backward is over."""

    def wait(self) -> None:
        """Wait until everything that this step needs has come back."""

    def sound(self) -> bool:
        """Return whether this step may be committed. All ranks get the same answer."""

    def update(self) -> None: ...

    def update_with(self, closure: Callable[[], Any], fresh: bool) -> Any:
        """Update with an optimizer that calls `closure` to evaluate the model again, such as LBFGS.

        With `fresh`, gradients are cleared before each evaluation.
        """

    def keep(self) -> None:
        """Copy gradients that the user may still read out of memory that will be overwritten."""

    def release(self) -> None:
        """Forget the gradients of this step."""

    def synchronize(self) -> None: ...

    def finish(self) -> None:
        """Wait until all updates of past steps are applied."""

    def close(self) -> None:
        """Remove all hooks. The model is not changed any more."""

    def discard(self) -> None:
        """Drop exchanges that were started for the step that was about to begin."""

    def take_spent(self) -> Spent:
        """Return the time that waiting and updating took outside of step() since the last call."""

    def staleness(self) -> Mapping[str, Any]:
        """Return when gradients left and parameters came back if a worker may be ahead of others; otherwise empty."""

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Rule(Protocol):
    """Says what a worker sends, when it may send it, and when the result must be back."""

    name: ClassVar[str]
    lanes: ClassVar[tuple[Lane, ...]]
    leaves: ClassVar[str]  # when vectors are sent: "backward", "begin" or "update"
    needs: ClassVar[str]  # from the exchange: "consensus", "doubly stochastic", "symmetric", "neighbors" or "servers"
    averages_gradients: ClassVar[bool]  # every rank applies the mean gradient

    @property
    def same_result(self) -> bool:
        """Return whether training gives the same parameters as one process that trains on all batches."""

    @property
    def bound(self) -> int | None: ...
    @property
    def streams(self) -> bool:
        """Whether it sends the model in parts, or takes a result some steps after it was sent."""

    @property
    def own_optimizer(self) -> str:
        """The text of an optimizer that the rule runs besides the user's; empty for most rules."""

    @property
    def intervals(self) -> tuple[int, ...]:
        """Return the steps between two exchanges, one number for each kind of exchange."""

    @property
    def period(self) -> int:
        """Return the number of steps after which the rule repeats."""

    def bind(self, context: Any) -> Duty: ...


class Presence(Protocol):
    """This rank's membership in a running group. `begin` returns the group of a step; `commit` votes on its end."""

    @property
    def comm(self) -> Comm:
        """Return the comm of the group that `begin` returned last."""

    def begin(self) -> View:
        """Return the group of the next step. If its generation is new, so is `comm`, and the engines must enter it."""

    def commit(self, ok: bool) -> bool: ...


class Membership(Protocol):
    """Says which processes form the group at each step."""

    name: ClassVar[str]
    elastic: ClassVar[bool]

    def join(self, comm: Comm) -> Presence: ...
