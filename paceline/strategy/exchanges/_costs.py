"""The bytes of compressed chunks over an exchange: round by round, and summed over all chunks of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from paceline.protocols import Compressor, Costed, Flows, Priced, Wire
from paceline.strategy.exchanges._rounds import Along, Edges, within
from paceline.types import Chunk, Cluster, Layout

ROWS = 10_240  # most steps of a topology to look at, because the cost of one grows with the number of ranks


@dataclass(frozen=True)
class Load:
    """Bytes that each rank receives, servers after workers, and that each node receives from others.

    Means over `steps`.
    """

    received: tuple[int, ...]
    crossing: tuple[int, ...]
    rounds: int
    steps: int
    period: int


def traffic(
    exchange: Priced, compressor: Compressor, layout: Layout, chunk: Chunk, cluster: Cluster, step: int = 0
) -> list[Flows]:
    """Return the rounds of one chunk at a step, with message sizes after compression."""
    wires = compressor.wires(layout, chunk, cluster.size)
    return [flows for wire in wires for flows in _rounds(exchange, wire, cluster, step)]


def _rounds(exchange: Priced, wire: Wire, cluster: Cluster, step: int) -> Iterator[Flows]:
    if wire.combine == "sum":
        yield from exchange.traffic(wire.nbytes, cluster, step)
    elif wire.combine == "gather":
        yield within([range(cluster.size)], wire.nbytes, cluster.nodes)
    else:
        yield Along(Edges.of(wire.pairs, cluster.nodes), wire.nbytes)


def load(exchange: Costed, compressor: Compressor, chunks: Sequence[tuple[Layout, Chunk]], cluster: Cluster) -> Load:
    """Return the sum over all chunks, without listing single flows."""
    placed = exchange.placing(cluster)
    period = exchange.period(cluster)
    steps = steps_of(period, max(1, ROWS // cluster.size))
    nodes = sorted(set(cluster.nodes))
    received: Counter[int] = Counter()
    crossing: Counter[int] = Counter()
    rounds = 0
    for step in steps:
        for layout, chunk in chunks:
            for flows in traffic(placed, compressor, layout, chunk, cluster, step):
                rounds += 1
                received.update(flows.received())
                if len(nodes) > 1:
                    _into_nodes(crossing, flows.crossing(), cluster)
    ranks, count = range(cluster.size + exchange.servers), len(steps)
    return Load(
        received=tuple(round(received[rank] / count) for rank in ranks),
        crossing=tuple(round(crossing[node] / count) for node in nodes),
        rounds=rounds // count,
        steps=count,
        period=period,
    )


def total(lanes: Sequence[Load]) -> Load:
    """Add up several lanes of one step; each lane places its own chunks."""
    return Load(
        received=tuple(map(sum, zip(*(lane.received for lane in lanes), strict=True))),
        crossing=tuple(map(sum, zip(*(lane.crossing for lane in lanes), strict=True))),
        rounds=sum(lane.rounds for lane in lanes),
        steps=lanes[0].steps,
        period=lanes[0].period,
    )


def steps_of(period: int, most: int) -> list[int]:
    """Return all steps of a period, or a sample.

    A sample has as many even as odd steps, which may use different links.
    """
    if period <= most:
        return list(range(period))
    count = min(period, max(2, most - most % 2))
    stride = next(stride for stride in range(max(1, 5 * period // 8), 2 * period) if gcd(stride, period) == 1)
    return sorted(stride * k % period for k in range(count))


def _into_nodes(crossing: Counter[int], into: Mapping[int, int], cluster: Cluster) -> None:
    for rank, node in enumerate(cluster.nodes):
        crossing[node] += into.get(rank, 0)
