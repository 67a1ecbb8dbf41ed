"""Several levels: inside the node first, then between nodes, then back.

hierarchical(4x8)             the sum over all ranks: reduce-scatter along each dimension, all-gather in reverse. The
same
                              bytes as a flat all-reduce in far fewer steps. Between nodes every rank sends its own part
hierarchical(neighbor(T))     the mean inside a node, mixed with neighboring nodes; every rank sends its own part
hierarchical                  dimensions from the nodes: ranks per node x nodes
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.comm.transport import Comm, Work
from paceline.errors import BadMember, WrongCommand
from paceline.menu.grammar import parse
from paceline.menu.menu import make
from paceline.protocols import Codec
from paceline.strategy.exchanges._rounds import Along, Edges, Fans, within
from paceline.strategy.exchanges._works import Chain, coded
from paceline.strategy.exchanges.neighbor import Neighbor, WrittenRows, edges
from paceline.strategy.exchanges.traits import ExchangeTraits
from paceline.types import Chunk, Cluster, Lane, Mixing, Unit, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Hierarchical(ExchangeTraits):
    over: str = ""

    name: ClassVar[str] = "hierarchical"

    def __post_init__(self) -> None:
        if self.over and not re.fullmatch(r"\d+(x\d+)*", self.over) and parse(self.over).word != "neighbor":
            raise BadMember(f"{self}", why="it takes dimensions or neighbor(...)", remedy="hierarchical(2x2)")
        if self.over and not self.neighbors and 0 in self._written_dimensions():
            raise BadMember(f"{self}", why="every dimension is at least 1")

    def __str__(self) -> str:
        return f"{self.name}({self.over})" if self.over else self.name

    @property
    def neighbors(self) -> Neighbor | None:
        """The exchange between nodes, if it is not a sum."""
        spec = parse(self.over) if self.over.startswith("neighbor") else None
        return None if spec is None else make(Neighbor, spec)

    @property
    def topology(self) -> Any:
        return None if self.neighbors is None else self.neighbors.topology

    @property
    def consensus(self) -> bool:
        return self.neighbors is None

    @property
    def weighs(self) -> str:
        return "" if self.neighbors is None else "node"

    def _written_dimensions(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.over.split("x"))

    def dimensions(self, cluster: Cluster) -> tuple[int, ...]:
        """Return the dimensions, innermost first; their product is the number of ranks."""
        if self.over and self.neighbors is None:
            return self._written_dimensions()
        return (cluster.size // cluster.count, cluster.count)

    def check(self, cluster: Cluster) -> None:
        per_node = [cluster.nodes.count(node) for node in sorted(set(cluster.nodes))]
        if (not self.over or self.neighbors) and len(set(per_node)) > 1:
            raise WrongCommand(
                f"exchange {self}", why=f"nodes have {per_node} ranks; levels need the same number in each"
            )
        if self.neighbors is not None:
            self.neighbors.topology.check(cluster.count, cluster.count)
        elif math.prod(self.dimensions(cluster)) != cluster.size:
            needed = math.prod(self.dimensions(cluster))
            raise WrongCommand(
                f"exchange {self}", why=f"it needs {needed} ranks; there are {cluster.size}", remedy=f"-np {needed}"
            )

    def join(self, comm: Comm, view: View, lane: Lane) -> LevelsChannel | NodesChannel:
        cluster = Cluster(view.nodes or (0,) * view.size)
        self.check(cluster)
        if self.neighbors is not None:
            return NodesChannel(comm, cluster, self.neighbors.topology)
        return LevelsChannel(comm, self.dimensions(cluster))

    def traffic(self, nbytes: int, cluster: Cluster, step: int = 0) -> Sequence[Fans | Along]:
        if self.neighbors is not None:
            return self._through_nodes(nbytes, cluster, step % self.period(cluster))
        rounds, length = [], padded(nbytes, cluster.size)
        for groups, size in along(self.dimensions(cluster)):
            length //= size
            rounds.append(within(groups, length, cluster.nodes))
        return [*rounds, *reversed(rounds)]

    def period(self, cluster: Cluster) -> int:
        return 1 if self.neighbors is None else self.neighbors.topology.period(cluster.count)

    def _through_nodes(self, nbytes: int, cluster: Cluster, step: int) -> list[Fans | Along]:
        """Return a reduce-scatter inside each node, one chunk per neighboring node, and an all-gather inside."""
        nodes = members(cluster)
        part = padded(nbytes, len(nodes[0])) // len(nodes[0])
        inside = within(nodes, part, cluster.nodes)
        if (cluster, step) not in self._known:
            heard = edges(self.topology, len(nodes), step, ()).sources
            pairs = ((nodes[peer], nodes[node]) for node, sources in heard.items() for peer in sources)
            ranks = [pair for between in pairs for pair in zip(*between, strict=True)]
            self._known[cluster, step] = Edges.of(ranks, cluster.nodes)
        return [inside, Along(self._known[cluster, step], part), inside]

    @cached_property
    def _known(self) -> dict[tuple[Cluster, int], Edges]:
        """The cached edges: all chunks of a step use the same ones."""
        return {}


class LevelsChannel:
    """Reduce-scatter along each dimension, all-gather in reverse."""

    def __init__(self, comm: Comm, dimensions: Sequence[int]) -> None:
        self._comm = self.memory = comm
        # Rounds up and rounds down have separate comms, so that each kind can advance in the order of chunks.
        self._levels = [(comm.split(groups), comm.split(groups), size) for groups, size in along(dimensions)]
        self._total = math.prod(dimensions)
        self._scratch: dict[tuple[int, str, int, Any], Tensor] = {}

    def start(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor, codec: Codec | None) -> Work:
        if codec is None:
            return Chain(self._climb(unit, chunk, src, dst), apart=True)
        rounds = codec.rounds(chunk, src, dst)
        return coded(rounds, lambda payload: Chain(self._climb(unit, chunk, payload.tensor, payload.out)))

    def _climb(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor) -> Iterator[Work]:
        length = padded(src.nbytes, self._total) // src.itemsize
        part = src
        if length != src.numel():
            part = self._room(chunk, "whole", length, src)
            part[: src.numel()].copy_(src)
        for depth, (comm, _, size) in enumerate(self._levels):
            smaller = self._room(chunk, f"up {depth}", part.numel() // size, src)
            yield comm.reduce_scatter(part, smaller, unit)
            part = smaller
        part = yield from self._across(unit, chunk, part)
        for depth, (_, comm, size) in reversed(list(enumerate(self._levels))):
            last = depth == 0 and length == dst.numel()
            larger = dst if last else self._room(chunk, f"down {depth}", part.numel() * size, src)
            yield comm.all_gather(part, larger, unit)
            part = larger
        if part is not dst:
            dst.copy_(part[: dst.numel()])

    def _across(self, unit: Unit, chunk: Chunk, part: Tensor) -> Generator[Work, None, Tensor]:
        """Combine this rank's part between nodes. Nothing is left to do here, because the sum is already complete."""
        yield from ()
        return part

    def _room(self, chunk: Chunk, use: str, numel: int, like: Tensor) -> Tensor:
        """Return memory for one level of a chunk's payload, the same in every step. Collective the first time."""
        key = (chunk.index, use, numel, like.dtype)
        if key not in self._scratch:
            self._scratch[key] = self._comm.allocate(numel, like.dtype)
        return self._scratch[key]

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


class NodesChannel(LevelsChannel):
    """The mean inside a node, cut into one part per rank.

    Each rank averages its part with the same local rank of other nodes.
    """

    def __init__(self, comm: Comm, cluster: Cluster, topology: Any) -> None:
        self._comm = self.memory = comm
        self._nodes, self._topology = members(cluster), topology
        self._node = next(k for k, node in enumerate(self._nodes) if comm.rank in node)
        self._total = len(self._nodes[0])
        self._levels = [(comm.split(self._nodes), comm.split(self._nodes), self._total)]
        self._between = comm.split([list(range(comm.size))])
        self._scratch = {}
        self.weights: WrittenRows | None = None
        self._written: Mixing | None = None

    def start(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor, codec: Codec | None) -> Work:
        """Start a unit. The user's weights are read now, in the order of chunks, because all ranks compare them."""
        self._written = None if self.weights is None else self.weights.row(unit.step)
        return super().start(unit, chunk, src, dst, codec)

    def _across(self, unit: Unit, chunk: Chunk, part: Tensor) -> Generator[Work, None, Tensor]:
        mixed = self._room(chunk, "mixed", part.numel(), part)
        yield self._between.mix(part, mixed, self._row(unit.step), unit)
        return mixed

    def _row(self, step: int) -> Mixing:
        """Return the row of this node, for this rank's part.

        Parts are sums, so the weights are divided by the ranks of a node.
        """
        row = self._written or self._topology.row(self._node, View(self._node, len(self._nodes)), step)
        place = self._nodes[self._node].index(self._comm.rank)
        sources = tuple((self._nodes[peer][place], weight / self._total) for peer, weight in row.sources)
        return Mixing(row.keep / self._total, sources, tuple(self._nodes[peer][place] for peer in row.targets))


def members(cluster: Cluster) -> list[list[int]]:
    """Return the ranks of each node."""
    by_node: dict[int, list[int]] = {}
    for rank, node in enumerate(cluster.nodes):
        by_node.setdefault(node, []).append(rank)
    return [by_node[node] for node in sorted(by_node)]


def along(dimensions: Sequence[int]) -> Iterator[tuple[list[list[int]], int]]:
    """Yield for each dimension, innermost first, the groups of ranks that differ only in it, and its size."""
    total, stride = math.prod(dimensions), 1
    for size in dimensions:
        firsts = [rank for rank in range(total) if rank // stride % size == 0]
        yield [[first + k * stride for k in range(size)] for first in firsts], size
        stride *= size


def padded(nbytes: int, parts: int) -> int:
    """Return the bytes rounded up so that they can be cut into equal parts of whole elements."""
    return nbytes + -nbytes % (16 * parts)
