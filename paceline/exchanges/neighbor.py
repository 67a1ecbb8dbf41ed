"""Every rank averages with its neighbors, with the weights of a topology; no two ranks need end up equal.

    y[i] = keep x[i] + sum_j weight[i, j] x[j]

A rank waits for its neighbors only, and sends one chunk to each of them: with one_peer, to exactly one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.exchanges.rounds import Along, Edges
from paceline.exchanges.works import coded
from paceline.menu import Member, nested
from paceline.protocols import Channel, Codec
from paceline.topologies.one_peer import OnePeer
from paceline.transport import Comm, Work
from paceline.types import Chunk, Cluster, Lane, Mixing, Unit, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Neighbor(Member):
    topology: Any = nested("paceline.topologies:MENU", default=OnePeer())

    name: ClassVar[str] = "neighbor"
    consensus: ClassVar[bool] = False
    phases: ClassVar[int] = 1
    servers: ClassVar[int] = 0
    takes_topology: ClassVar[bool] = True
    asynchronous: ClassVar[bool] = False
    one_call: ClassVar[bool] = True
    shares_results: ClassVar[bool] = False
    gathers: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"{self.name}({self.topology})"

    def check(self, cluster: Cluster) -> None:
        self.topology.check(cluster.size, cluster.count)

    def join(self, comm: Comm, view: View, lane: Lane) -> Channel:
        return NeighborChannel(comm, view, self.topology, lane)

    def traffic(self, nbytes: int, cluster: Cluster, step: int = 0) -> Sequence[Along]:
        return [Along(self._edges(cluster, step % self.period(cluster)), nbytes)]

    def period(self, cluster: Cluster) -> int:
        found: int = self.topology.period(cluster.size, cluster.count)
        return found

    def _edges(self, cluster: Cluster, step: int) -> Edges:
        if (cluster, step) not in self._known:
            self._known[cluster, step] = edges(self.topology, cluster.size, step, cluster.nodes)
        return self._known[cluster, step]

    @cached_property
    def _known(self) -> dict[tuple[Cluster, int], Edges]:
        """What was asked for before: all chunks of a step go along the same edges."""
        return {}


def edges(topology: Any, size: int, step: int, nodes: tuple[int, ...]) -> Edges:
    """Who hears from whom at a step."""
    rows = [topology.row(rank, View(rank, size, nodes), step) for rank in range(size)]
    return Edges({rank: tuple(source for source, _ in row.sources) for rank, row in enumerate(rows)}, nodes)


class NeighborChannel:
    """One row of the topology's matrix per step; a lane with mass takes columns that sum to one instead."""

    def __init__(self, comm: Comm, view: View, topology: Any, lane: Lane) -> None:
        self._comm, self._view, self._topology = comm, view, topology
        self.memory = comm
        self._row = split_mass if lane.tail == "mass" else plain_row

    def start(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor, codec: Codec | None) -> Work:
        row = self._row(self._topology, self._view, unit.step)
        if codec is None:
            return self._comm.mix(src, dst, row, unit)
        rounds = codec.rounds(chunk, src, dst)
        return coded(rounds, lambda payload: self._comm.mix(payload.tensor, payload.out, row, unit))

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


def plain_row(topology: Any, view: View, step: int) -> Mixing:
    row: Mixing = topology.row(view.rank, view, step)
    return row


def split_mass(topology: Any, view: View, step: int) -> Mixing:
    """Every rank cuts its mass into equal parts, one for each target and one for itself."""
    own = plain_row(topology, view, step)

    def share(rank: int) -> float:
        return 1.0 / (1 + len(topology.row(rank, view, step).targets))

    sources = tuple((source, share(source)) for source, _ in own.sources)
    return Mixing(share(view.rank), sources, own.targets)
