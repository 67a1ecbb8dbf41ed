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
    """One tensor of an arena. A shape of () says that it is not known."""

    name: str
    numel: int
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Layout:
    """Where each tensor lies in an arena: slots one after another, then a tail of one flag per slot.

        | slot 0 | slot 1 | ... | slot L-1 | flags |

    Slots stand in the order in which gradients become ready. Flag i of the sum counts the ranks on
    which tensor i had a gradient, so that a parameter unused everywhere is told from a zero gradient.
    """

    slots: tuple[Slot, ...]
    itemsize: int = 4
    tail: int = 0

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """offsets[i] is the first element of slot i; the last entry is where the tail begins."""
        return (0, *accumulate(slot.numel for slot in self.slots))

    @property
    def numel(self) -> int:
        return self.offsets[-1] + self.tail

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize

    @property
    def body(self) -> int:
        """Elements before the tail."""
        return self.offsets[-1]

    def slots_in(self, start: int, stop: int) -> tuple[int, ...]:
        """The slots that share an element with [start, stop), which may cut through tensors."""
        first = bisect_right(self.offsets, start) - 1
        last = bisect_left(self.offsets, stop)
        return tuple(i for i in range(first, min(last, len(self.slots))) if self.slots[i].numel)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range [start, stop) of one arena; what travels as one message."""

    index: int
    start: int
    stop: int
    arena: int = 0

    @property
    def numel(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Plan:
    """Where an arena is cut, in elements, ends included: (0, 10, 25) is two chunks."""

    cuts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.cuts) < 2 or self.cuts[0] != 0 or list(self.cuts) != sorted(set(self.cuts)):
            raise ValueError(f"cut points must rise from 0 to the end of the arena; got {self.cuts}")

    def chunks(self, arena: int = 0, first: int = 0) -> tuple[Chunk, ...]:
        pairs = zip(self.cuts, self.cuts[1:], strict=False)
        return tuple(Chunk(first + k, start, stop, arena) for k, (start, stop) in enumerate(pairs))


class Unit(NamedTuple):
    """What the dispatcher lets leave: one phase of one chunk in one step."""

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
    """What a schedule may look at: the layout, and, once measured, when each slot was ready in backward and when
    the forward of its layer began (seconds)."""

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
    """Where a process starts: words before its command, and variables on top of its environment."""

    prefix: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    def inside(self, outer: Place) -> Place:
        """This place, entered from another one."""
        return Place(outer.prefix + self.prefix, {**outer.environ, **self.environ})


@dataclass(frozen=True)
class Host:
    """A machine that ranks start on, as the user wrote it; an empty name is this machine.

    slots        how many ranks it takes
    address      where other hosts reach it; its name if empty
    interface    the network interface that carries the exchange; chosen by the library if empty
    python       the interpreter to run there; the launcher's own if empty
    folder       the folder that workers start in; the launcher's own if empty
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
    """Where one rank runs: its host, its number among the ranks of that host, and how it is started there."""

    rank: int
    host: Host = HERE
    local_rank: int = 0
    place: Place = field(default_factory=Place)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where ranks are, for declaring traffic: `nodes[r]` is the host index of rank r."""

    nodes: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.nodes)

    @property
    def count(self) -> int:
        """Number of nodes."""
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
    """Bytes that one rank must get from another in one round of an exchange."""

    src: int
    dst: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One vector that a rule sends through the exchange.

    tail: "flags" (one per slot: had a gradient), "mass" (one number, of push_sum) or "" (nothing)
    stale_ok: whether what comes back may be of another step of another rank
    half: what half-precision numbers travel as: "half"; "mixed" (half where every rank mixes them once by itself,
        float32 where they are summed on the way, which would round again); "float32"
    """

    name: str
    needs_consensus: bool
    lossy_ok: bool
    tail: str = ""
    stale_ok: bool = False
    half: str = "half"


@dataclass(frozen=True, slots=True)
class Mixing:
    """One rank's part in one step of neighbor averaging: y = keep x + the weighted x of the sources.

    sources are (rank, weight), targets the ranks that hear from this one; both in rank order.
    """

    keep: float
    sources: tuple[tuple[int, float], ...] = ()
    targets: tuple[int, ...] = ()


class Event(NamedTuple):
    """One line of the event stream: engine and simulator emit the same kinds.

    kind: of a rank's own work, each lasting until the next: data (fetching begins), forward, backward, computed
    (the step is called), left (waiting for others begins), waited, updated, end. Kinds of the engine: begin, ready (a
    gradient is in the arena), need, said, leave, and arrived (a unit was seen to be there before anybody waited for
    it) or back. `what` is the slot of `ready` and `need`, and the chunk of `said`, `leave`, `arrived` and `back`;
    `detail` is the phase of a unit, and the seconds that copying into the arena took, of `ready`. Times are of the
    clock that the emitter was given.
    """

    seconds: float
    kind: str
    step: int
    what: int = -1
    detail: float = 0


@dataclass(slots=True)
class Spent:
    """Seconds that passed outside of step(); `in_backward` of them when a step opened with its first gradient."""

    waited: float = 0.0
    updated: float = 0.0
    in_backward: float = 0.0


# An event as it is written down while steps run, which takes half of the time of a named one; `Event._make` names it.
Noted = tuple[float, str, int, int, float]


@dataclass(frozen=True)
class Workload:
    """A network with its loss and its samples.

    model   a torch Module
    loss    loss(model, batch) -> a scalar, the mean over the batch
    batch   batch(ids) -> the samples with these ids (an int64 tensor), as tensors on the CPU
    unit    what one sample is called: "img", "sequence", ...
    grade   grade(model, batch) -> (right, loss), one number per sample; None where there is no right and wrong. `right`
            may have two columns: whether the best class is right, and whether one of the five best is
    smoothed  smoothed(amount) -> a loss with label smoothing; None where there is none
    """

    model: Any
    loss: Callable[[Any, Any], Any]
    batch: Callable[[Any], Any]
    unit: str = "img"
    grade: Callable[[Any, Any], Any] | None = None
    smoothed: Callable[[float], Callable[[Any, Any], Any]] | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far an indexable source has come: the next global batch of an epoch."""

    epoch: int = 0
    step: int = 0
    seed: int = 0


Seconds = Callable[[float], float]


def spread(total: int, parts: int, grain: int = 1) -> tuple[int, ...]:
    """Bounds that cut `total` into `parts` ranges as even as multiples of `grain` allow."""
    blocks = -(-total // grain)
    return tuple(min(total, grain * (blocks * k // parts)) for k in range(parts + 1))
