"""The values that paceline passes around: frozen, dumb, free of torch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class View:
    """The group at one step, seen from one rank. `nodes[r]` is the host index of rank r.

    `generation` counts the groups of a job: two views with the same generation have the same members in the same
    order. `members[r]` is the stable identity of the process at rank r; it is empty where ranks never change.
    """

    rank: int
    size: int
    nodes: tuple[int, ...] = ()
    generation: int = 0
    members: tuple[str, ...] = ()

    def node_of(self, rank: int) -> int:
        return self.nodes[rank] if self.nodes else 0


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of an arena. The shape is () if it is not known."""

    name: str
    numel: int
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Layout:
    """The place of each tensor in an arena: slots one after another, then a tail with one flag per slot.

        | slot 0 | slot 1 | ... | slot L-1 | flags |

    Slots are in the order in which gradients become ready. After the sum, flag i is the number of ranks on which
    tensor i had a gradient. It distinguishes a parameter that no rank used from one whose gradient is zero.
    """

    slots: tuple[Slot, ...]
    itemsize: int = 4
    tail: int = 0

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Return the first element of every slot; one more entry at the end says where the tail begins."""
        return (0, *accumulate(slot.numel for slot in self.slots))

    @property
    def numel(self) -> int:
        return self.offsets[-1] + self.tail

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize

    @property
    def body(self) -> int:
        """Return the number of elements before the tail."""
        return self.offsets[-1]

    def slots_in(self, start: int, stop: int) -> tuple[int, ...]:
        """Return the slots that have at least one element in [start, stop). The bounds may lie inside a tensor."""
        first = bisect_right(self.offsets, start) - 1
        last = bisect_left(self.offsets, stop)
        return tuple(i for i in range(first, min(last, len(self.slots))) if self.slots[i].numel)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range [start, stop) of one arena that travels as one message."""

    index: int
    start: int
    stop: int
    arena: int = 0

    @property
    def numel(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Plan:
    """The positions, in elements, at which an arena is cut. Both ends are included: (0, 10, 25) is two chunks."""

    cuts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.cuts) < 2 or self.cuts[0] != 0 or list(self.cuts) != sorted(set(self.cuts)):
            raise ValueError(f"cut points must rise from 0 to the end of the arena; got {self.cuts}")

    def chunks(self, arena: int = 0, first: int = 0) -> tuple[Chunk, ...]:
        pairs = zip(self.cuts, self.cuts[1:], strict=False)
        return tuple(Chunk(first + k, start, stop, arena) for k, (start, stop) in enumerate(pairs))


class Unit(NamedTuple):
    """One phase of one chunk in one step. The dispatcher decides when each unit is sent."""

    step: int
    chunk: int
    phase: int = 0
    vector: int = 0  # which of the vectors that engines exchange, where there are several

    def __str__(self) -> str:
        phase = f", phase {self.phase}" if self.phase else ""
        vector = f" of vector {self.vector}" if self.vector else ""
        return f"chunk {self.chunk}{phase}{vector} at step {self.step}"


@dataclass(frozen=True, slots=True)
class Profile:
    """The inputs of a schedule: the layout, and once measured, two times per slot in seconds.

    `ready` is when the gradient of the slot was ready in backward; `forward` is when the forward of its layer began.
    """

    layout: Layout
    ready: tuple[float, ...] = ()
    forward: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """A measured link: a message of n bytes takes latency + n / bandwidth seconds."""

    latency: float
    bandwidth: float

    def seconds(self, nbytes: float) -> float:
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True, slots=True)
class Place:
    """How a process is started in a certain place: words to put before its command, and variables to add."""

    prefix: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    def inside(self, outer: Place) -> Place:
        """Return the place that is this place inside `outer`: the prefix of `outer` comes first, own variables win."""
        return Place(outer.prefix + self.prefix, {**outer.environ, **self.environ})


@dataclass(frozen=True)
class Host:
    """A machine that ranks start on, as the user wrote it. An empty name means this machine.

    slots        the number of ranks that fit on it
    address      the address at which other hosts reach it; if empty, its name
    interface    the network interface that carries the exchange; if empty, the library chooses one
    python       the interpreter to run there; if empty, the one of the launcher
    folder       the folder that workers start in; if empty, the one of the launcher
    """

    name: str = ""
    slots: int = 1
    address: str = ""
    interface: str = ""
    python: str = ""
    folder: str = ""
    port: int = 0
    user: str = ""
    identity: str = ""
    environ: Mapping[str, str] = field(default_factory=dict, hash=False)


HERE = Host(address="127.0.0.1", interface="lo")


@dataclass(frozen=True)
class Seat:
    """The place of one rank: its host, its number among the ranks of that host, and how it is started there."""

    rank: int
    host: Host = HERE
    local_rank: int = 0
    place: Place = field(default_factory=Place)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The hosts of all ranks, for computing traffic: `nodes[r]` is the host index of rank r."""

    nodes: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.nodes)

    @property
    def count(self) -> int:
        """Return the number of nodes."""
        return len(set(self.nodes))

    @classmethod
    def of_one_host(cls, size: int) -> Cluster:
        return cls((0,) * size)


class Piece(NamedTuple):
    """A range [start, stop) of a chunk, and the rank that adds it up."""

    owner: int
    start: int
    stop: int


class Flow(NamedTuple):
    """The number of bytes that rank `src` must send to rank `dst` in one round of an exchange."""

    src: int
    dst: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One vector that a rule sends through the exchange.

    tail: "flags" (one per slot: whether it had a gradient), "mass" (one number, for push_sum) or "" (nothing)
    stale_ok: whether the values that come back may belong to different steps of different ranks
    half: the dtype in which half-precision numbers travel. "half" and "float32" are always that dtype. "mixed" is
        half if every rank mixes what it receives and rounds once, and float32 if sums on the way would round again
    """

    name: str
    needs_consensus: bool
    lossy_ok: bool
    tail: str = ""
    stale_ok: bool = False
    half: str = "half"


@dataclass(frozen=True, slots=True)
class Mixing:
    """One rank's part in one step of neighbor averaging: y = keep * x + sum of weight * x[rank] over the sources.

    `sources` are pairs (rank, weight). `targets` are the ranks that this rank sends to. Both are in rank order.
    """

    keep: float
    sources: tuple[tuple[int, float], ...] = ()
    targets: tuple[int, ...] = ()


class Event(NamedTuple):
    """One line of the event log. Engine and simulator emit the same kinds of events.

    Kinds of a rank's own work, each lasting until the next: data (fetching begins), forward, backward, computed
    (the step is called), left (waiting for others begins), waited, updated, end.
    Kinds of the engine: begin, ready (a gradient is in the arena), need (forward needs a slot), said (rank 0 announced
    a chunk), leave (a unit is sent), arrived (a unit's result was there before the engine waited for it), back (the
    engine has waited for it).
    `what` is the slot for `ready` and `need`, and the chunk for `said`, `leave`, `arrived` and `back`. `detail` is the
    phase of a unit; for `ready` it is the seconds that copying into the arena took. Times are those of the clock that
    the emitter was constructed with.
    """

    seconds: float
    kind: str
    step: int
    what: int = -1
    detail: float = 0


@dataclass(slots=True)
class Spent:
    """Seconds spent outside of step(): waiting, updating, and the part of both that fell into backward."""

    waited: float = 0.0
    updated: float = 0.0
    in_backward: float = 0.0


# An event as a plain tuple, which takes half of the time of a NamedTuple while steps run; `Event._make` converts it.
Noted = tuple[float, str, int, int, float]


@dataclass(frozen=True)
class Workload:
    """A network with its loss and its samples.

    model   a torch Module
    loss    loss(model, batch) -> a scalar, the mean over the batch
    batch   batch(ids) -> the samples with these ids (an int64 tensor), as tensors on the CPU
    unit    the name of one sample: "img", "sequence", ...
    grade   grade(model, batch) -> (right, loss), one number per sample; None if answers cannot be right or wrong.
            `right` may have two columns: whether the best class is right, and whether one of the best five is
    smoothed  smoothed(amount) -> a loss with label smoothing; None if the workload has no such loss
    """

    model: Any
    loss: Callable[[Any, Any], Any]
    batch: Callable[[Any], Any]
    unit: str = "img"
    grade: Callable[[Any, Any], Any] | None = None
    smoothed: Callable[[float], Callable[[Any, Any], Any]] | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in an indexable source: the epoch, and the number of the next global batch in it."""

    epoch: int = 0
    step: int = 0
    seed: int = 0


Seconds = Callable[[float], float]


def spread(total: int, parts: int, grain: int = 1) -> tuple[int, ...]:
    """Return bounds that cut `total` into `parts` about equal ranges. Inner bounds are multiples of `grain`."""
    blocks = -(-total // grain)
    return tuple(min(total, grain * (blocks * k // parts)) for k in range(parts + 1))
