"""Every rank averages with its neighbors, with the weights of a topology; ranks may end with different values.

    y[i] = keep x[i] + sum_j weight[i, j] x[j]

A rank waits for its neighbors only, and sends one chunk to each of them: with one_peer, to exactly one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from paceline.comm.transport import Comm, Work
from paceline.menu.menu import nested
from paceline.protocols import Channel, Codec, Topology
from paceline.strategy.exchanges._rounds import Along, Edges
from paceline.strategy.exchanges._works import coded
from paceline.strategy.exchanges.traits import ExchangeTraits
from paceline.strategy.topologies.one_peer import OnePeer
from paceline.types import Chunk, Cluster, Lane, Mixing, Unit, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Neighbor(ExchangeTraits):
    topology: Topology = nested("paceline.strategy.topologies:MENU", default=OnePeer())

    name: ClassVar[str] = "neighbor"
    consensus: ClassVar[bool] = False
    takes_topology: ClassVar[bool] = True
    one_call: ClassVar[bool] = True
    mixes_once: ClassVar[bool] = True

    @property
    def weighs(self) -> str:
        return "rank"

    def __str__(self) -> str:
        return f"{self.name}({self.topology})"

    def with_topology(self, topology: Topology) -> Neighbor:
        return replace(self, topology=topology)

    def check(self, cluster: Cluster) -> None:
        self.topology.check(cluster.size, cluster.count)
        if cluster.count > 1:  # counts do not show that nodes have different numbers of ranks
            self.topology.row(0, View(0, cluster.size, cluster.nodes), 0)

    def join(self, comm: Comm, view: View, lane: Lane) -> Channel:
        return NeighborChannel(comm, view, self.topology, lane)

    def traffic(self, nbytes: int, cluster: Cluster, step: int = 0) -> Sequence[Along]:
        return [Along(self._edges(cluster, step % self.period(cluster)), nbytes)]

    def period(self, cluster: Cluster) -> int:
        return self.topology.period(cluster.size, cluster.count)

    def _edges(self, cluster: Cluster, step: int) -> Edges:
        if (cluster, step) not in self._known:
            self._known[cluster, step] = edges(self.topology, cluster.size, step, cluster.nodes)
        return self._known[cluster, step]

    @cached_property
    def _known(self) -> dict[tuple[Cluster, int], Edges]:
        """The cached edges: all chunks of a step use the same ones."""
        return {}


def edges(topology: Topology, size: int, step: int, nodes: tuple[int, ...]) -> Edges:
    """Return which ranks each rank receives from at a step."""
    rows = [topology.row(rank, View(rank, size, nodes), step) for rank in range(size)]
    return Edges({rank: tuple(source for source, _ in row.sources) for rank, row in enumerate(rows)}, nodes)


class WrittenRows(Protocol):
    """Weights that a user sets, in place of those of a topology."""

    def row(self, step: int) -> Mixing: ...


class NeighborChannel:
    """Averages with one row of the topology's matrix per step; a lane with mass uses columns that sum to one."""

    def __init__(self, comm: Comm, view: View, topology: Topology, lane: Lane) -> None:
        self._comm, self._view, self._topology = comm, view, topology
        self.memory = comm
        self._row = split_mass if lane.tail == "mass" else plain_row
        self.weights: WrittenRows | None = None

    def start(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor, codec: Codec | None) -> Work:
        written = self.weights
        row = self._row(self._topology, self._view, unit.step) if written is None else written.row(unit.step)
        if codec is None:
            return self._comm.mix(src, dst, row, unit)
        rounds = codec.rounds(chunk, src, dst)
        return coded(rounds, lambda payload: self._comm.mix(payload.tensor, payload.out, row, unit))

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


def plain_row(topology: Topology, view: View, step: int) -> Mixing:
    return topology.row(view.rank, view, step)


def split_mass(topology: Topology, view: View, step: int) -> Mixing:
    """Return a mixing in which a rank splits its mass into equal parts, one for each target and one for itself."""
    own = plain_row(topology, view, step)

    def share(rank: int) -> float:
        return 1.0 / (1 + len(topology.row(rank, view, step).targets))

    sources = tuple((source, share(source)) for source, _ in own.sources)
    return Mixing(share(view.rank), sources, own.targets)
