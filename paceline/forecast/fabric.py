"""Machines and wires of a forecast: nodes, ports, lines inside and between nodes, cores. Pure values.

    node 0                      node 1
    rank 0 -- inside -- rank 1  rank 2 -- inside -- rank 3      every rank has its own line
            \\  port                    /  port                  between: every node has one port, in and out
             +------- core of the network ---------+            oversubscription: the ports share less than their sum

A message takes latency + bytes / bandwidth on its narrowest part. Ports work in both directions at once unless
`duplex` is off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log, sqrt

from paceline.types import Cluster


@dataclass(frozen=True, slots=True)
class Line:
    """A wire: seconds before the first byte, and bytes per second after it."""

    latency: float
    bandwidth: float

    def seconds(self, nbytes: float) -> float:
        return self.latency + nbytes / self.bandwidth


FREE = Line(0.0, inf)


@dataclass(frozen=True)
class Fabric:
    """
    nodes, ranks       nodes, and ranks of each
    inside, between    the line of a rank inside its node, and the port of a node
    algorithm          how a sum travels: "ring", "tree" (a ring with log2 hops) or "direct" (everybody to everybody)
    scatter            how a reduce-scatter by itself travels
    oversubscription   bytes per second of all ports, divided by those of the network behind them
    incast             part of the bandwidth that a port loses for every further sender at once
    duplex             whether a port sends and receives at the same time
    call               seconds that a rank spends to start one operation
    cores, host        cores that all nodes share, and core-seconds for every byte that a rank sends
    inline             whether the computing thread moves the bytes itself, so that nothing overlaps
    aside              whether the host packs and encodes while backward goes on elsewhere, as beside an accelerator
    jitter             standard deviation of a rank's compute time, as a part of it
    slow, slowness     ranks that are slower than the others, and by which factor
    """

    nodes: int
    ranks: int
    inside: Line = FREE
    between: Line = FREE
    algorithm: str = "ring"
    scatter: str = "ring"
    oversubscription: float = 1.0
    incast: float = 0.0
    duplex: bool = True
    call: float = 0.0
    cores: float = inf
    host: float = 0.0
    inline: bool = False
    aside: bool = False
    jitter: float = 0.0
    slow: int = 0
    slowness: float = 1.0

    @property
    def size(self) -> int:
        return self.nodes * self.ranks

    @property
    def cluster(self) -> Cluster:
        return Cluster(tuple(rank // self.ranks for rank in range(self.size)))

    def resized(self, workers: int) -> Fabric:
        """Return the same machines for another number of workers; if all fit into one node, there is only one."""
        if workers <= self.ranks:
            return replace(self, nodes=1, ranks=workers, slow=min(self.slow, workers))
        return replace(self, nodes=-(-workers // self.ranks), slow=min(self.slow, workers))

    @property
    def core(self) -> float:
        """Bytes per second that all of the network can carry."""
        return self.between.bandwidth * self.nodes / self.oversubscription

    def classes(self) -> tuple[RankClass, ...]:
        """Groups of ranks that are alike: all ranks, or the slow ones apart from the others."""
        if not self.slow or self.slowness == 1.0 or self.slow >= self.size:
            return (RankClass(self.size, self.slowness if self.slow >= self.size else 1.0),)
        return RankClass(self.size - self.slow, 1.0), RankClass(self.slow, self.slowness)

    def delay(self, peers: int) -> float:
        """Return by how much the slowest of `peers` ranks exceeds the mean compute time, relative to the mean.

        It is the expected maximum of n normal variables, by the bound sqrt(2 ln n).
        """
        return self.jitter * sqrt(2 * log(peers)) if peers > 1 else 0.0


@dataclass(frozen=True, slots=True)
class RankClass:
    """A number of ranks whose compute takes `slowness` times as long."""

    count: int
    slowness: float
