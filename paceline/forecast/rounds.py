"""The cost of the rounds of an exchange on a fabric, from the flows that it declares and the way a comm moves them.

    exchange.traffic       the flows of each round: an all-reduce sends parts to their owners, then sums to all
    algorithm              how flows travel: around a ring, or directly from every rank to every rank
    Cost                   seconds of a round on each part of the fabric, as a + b bytes

Costs grow linearly with bytes. So an exchange computes its traffic once, for a size that divides evenly, and the costs
are scaled.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf, log2

from paceline.comm.patterns import ring_cost
from paceline.forecast.fabric import Fabric, Line
from paceline.protocols import Compressor, Costed, Flows, Wire
from paceline.strategy.exchanges._rounds import Along, Edges, Fan, Fans, within
from paceline.types import Chunk, Flow, Layout

PARTS = ("inside", "out", "in", "core", "cores")  # parts of a fabric; each serves one round after another
EXACT = 256  # ranks up to which the shares of owners are counted finely
PIECE = 1 << 14  # bytes per rank for which an exchange computes its traffic


@dataclass(frozen=True, slots=True)
class RoundStage:
    """One round of one chunk: seconds before the first byte, then the seconds that each part of the fabric is busy."""

    fixed: float
    busy: tuple[float, ...]
    received: float = 0.0

    @property
    def seconds(self) -> float:
        return self.fixed + max(self.busy)


@dataclass(frozen=True, slots=True)
class RoundCost:
    """A round as fixed + slope x bytes; `received` is the bytes into the busiest worker per byte of the chunk."""

    fixed: float
    slope: tuple[float, ...]
    received: float

    def stage(self, nbytes: float) -> RoundStage:
        return RoundStage(self.fixed, tuple(nbytes * part for part in self.slope), nbytes * self.received)


class Rounds:
    """The rounds of one exchange on one fabric, for any chunk."""

    def __init__(self, exchange: Costed, fabric: Fabric) -> None:
        self._exchange, self._fabric, self._cluster = exchange, fabric, fabric.cluster
        self._placed = exchange.placing(fabric.cluster)
        # Owners get whole pieces, so shares are exact only for many pieces; with many ranks, counting them takes long.
        self._unit = fabric.size * PIECE * (8 if exchange.by_owner and fabric.size <= EXACT else 1)
        self._costs: dict[object, list[RoundCost]] = {}

    def of_chunk(self, compressor: Compressor, layout: Layout, chunk: Chunk, step: int = 0) -> list[RoundStage]:
        """Return the rounds of a chunk, with its bytes after compression."""
        wires = compressor.wires(layout, chunk, self._cluster.size)
        return [stage for wire in wires for stage in self.of_wire(wire, step)]

    def of_wire(self, wire: Wire, step: int = 0) -> list[RoundStage]:
        if self._cluster.size == 1 and not self._exchange.servers:
            return []
        return [cost.stage(wire.nbytes) for cost in self._of(wire, step % self._exchange.period(self._cluster))]

    def _of(self, wire: Wire, step: int) -> list[RoundCost]:
        key = (wire.combine, wire.pairs, step if wire.combine == "sum" else 0)
        if key not in self._costs:
            rounds = list(self._flows(wire, step))
            self._costs[key] = [
                cost_of(flows, self._unit, self._fabric, self._algorithm(wire, 2 * k + 1 < len(rounds)))
                for k, flows in enumerate(rounds)
            ]
        return self._costs[key]

    def _algorithm(self, wire: Wire, reduces: bool) -> str:
        """Return the algorithm that a comm uses for a round. The first rounds of a sum reduce, the last ones gather."""
        exchange, fabric = self._exchange, self._fabric
        if wire.combine == "gather" or (exchange.one_sum and exchange.phases == 1):
            return fabric.algorithm
        if exchange.by_owner:
            return "direct"
        return fabric.scatter if reduces else "ring" if fabric.algorithm == "tree" else fabric.algorithm

    def _flows(self, wire: Wire, step: int) -> Sequence[Flows]:
        if wire.combine == "sum":
            return self._placed.traffic(self._unit, self._cluster, step)
        if wire.combine == "gather":
            return [within([range(self._cluster.size)], self._unit, self._cluster.nodes)]
        return [Along(Edges.of(wire.pairs, self._cluster.nodes), self._unit)]


def cost_of(flows: Flows, unit: int, fabric: Fabric, algorithm: str) -> RoundCost:
    """Return the cost of a round whose flows were declared for a chunk of `unit` bytes."""
    load = PortLoad(fabric, algorithm)
    if isinstance(flows, Fans):
        for fan in flows.fans:
            load.add_fan(fan)
    else:
        load.add_edges(flows)
    return load.cost(unit)


class PortLoad:
    """The bytes on every port, the hops and the senders of one round."""

    def __init__(self, fabric: Fabric, algorithm: str) -> None:
        self._fabric, self._nodes, self._algorithm = fabric, fabric.cluster.nodes, algorithm
        self._out: dict[int, float] = defaultdict(float)  # by node
        self._in: dict[int, float] = defaultdict(float)
        self._inside: dict[int, float] = defaultdict(float)  # by rank
        self._sent: dict[int, float] = defaultdict(float)
        self._received: dict[int, float] = defaultdict(float)
        self._fixed, self._senders, self._crosses = 0.0, 1, False

    def node(self, rank: int) -> int:
        """Return the node of a rank; each server, a rank after the workers, has its own node."""
        return self._nodes[rank] if rank < len(self._nodes) else len(self._nodes) + rank

    def add_fan(self, fan: Fan) -> None:
        group = fan.sources.keys() & fan.targets.keys()
        if self._algorithm != "direct" and len(group) == len(fan.sources) == len(fan.targets) > 1:
            self._add_ring(sorted(group, key=lambda rank: (self.node(rank), rank)), fan)
        else:
            self._add_direct(fan)

    def _add_ring(self, order: Sequence[int], fan: Fan) -> None:
        """Add a ring: size - 1 times, every rank sends the part that it received last to the next rank."""
        size = len(order)
        whole = sum(fan.sources.values()) * sum(fan.targets.values()) / size
        ring = ring_cost(size, whole, passes=1)
        crossing = 0
        for left, right in pairwise([*order, order[0]]):
            crossing += self._carry(left, right, ring.nbytes)
        inside = size - crossing
        hops = ceil(log2(size)) if self._algorithm == "tree" else ring.rounds
        between, within_node = self._fabric.between.latency, self._fabric.inside.latency
        self._wait(hops / size * (crossing * between + inside * within_node))

    def _add_direct(self, fan: Fan) -> None:
        """Add flows from every source to every target at once."""
        sources, targets = sum(fan.sources.values()), sum(fan.targets.values())
        by_source, by_target = Counter[int](), Counter[int]()
        for rank, factor in fan.sources.items():
            by_source[self.node(rank)] += factor
            self._sent[rank] += factor * (targets - fan.targets.get(rank, 0))
        for rank, factor in fan.targets.items():
            by_target[self.node(rank)] += factor
            self._received[rank] += factor * (sources - fan.sources.get(rank, 0))
        for node, factor in by_source.items():
            self._out[node] += factor * (targets - by_target[node])
            self._inside[node] += factor * by_target[node] / self._fabric.ranks
        for node, factor in by_target.items():
            self._in[node] += factor * (sources - by_source[node])
        across = len(by_source.keys() | by_target.keys()) > 1
        self._senders = max(self._senders, len(by_source) - (len(by_target) > 1) if across else 1)
        self._wait((self._fabric.between if across else self._fabric.inside).latency)

    def add_edges(self, flows: Iterable[Flow]) -> None:
        crossing = False
        for flow in flows:
            crossing |= self._carry(flow.src, flow.dst, flow.nbytes)
        line = self._fabric.between if crossing else self._fabric.inside
        self._wait(line.latency)

    def _carry(self, src: int, dst: int, nbytes: float) -> bool:
        """Add one flow; return whether it crosses nodes."""
        left, right = self.node(src), self.node(dst)
        self._sent[src] += nbytes
        self._received[dst] += nbytes
        if left == right:
            self._inside[src] += nbytes
            return False
        self._out[left] += nbytes
        self._in[right] += nbytes
        return True

    def _wait(self, seconds: float) -> None:
        self._fixed = max(self._fixed, seconds)

    def cost(self, unit: int) -> RoundCost:
        fabric = self._fabric
        out, into = _most(self._out), _most(self._in) * (1 + fabric.incast * (self._senders - 1))
        if not fabric.duplex:
            out = into = out + into
        seconds = (
            _seconds(_most(self._inside), fabric.inside),
            _seconds(out, fabric.between),
            _seconds(into, fabric.between),
            sum(self._out.values()) / fabric.core if fabric.oversubscription > 1 else 0.0,
            fabric.host * sum(self._sent.values()) / fabric.cores,
        )
        slope = tuple(part / unit for part in seconds)
        workers = (self._received[rank] for rank in range(fabric.size))
        return RoundCost(fabric.call + self._fixed, slope, max(workers) / unit)


def _most(amounts: Mapping[int, float]) -> float:
    return max(amounts.values(), default=0.0)


def _seconds(nbytes: float, line: Line) -> float:
    return 0.0 if line.bandwidth == inf else nbytes / line.bandwidth
