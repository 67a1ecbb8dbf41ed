"""What a compressed chunk costs over an exchange, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.protocols import Compressor, Exchange, Wire
from paceline.types import Chunk, Cluster, Flow, Layout


def traffic(
    exchange: Exchange, compressor: Compressor, layout: Layout, chunk: Chunk, cluster: Cluster
) -> list[Sequence[Flow]]:
    """Rounds of flows of one chunk, with what its compressor makes of it."""
    wires = compressor.wires(layout, chunk, cluster.size)
    return [flows for wire in wires for flows in _rounds(exchange, wire, cluster)]


def _rounds(exchange: Exchange, wire: Wire, cluster: Cluster) -> Iterator[Sequence[Flow]]:
    if wire.combine == "sum":
        yield from exchange.traffic(wire.nbytes, cluster)
    elif wire.combine == "gather":
        ranks = range(cluster.size)
        yield [Flow(src, dst, wire.nbytes) for src in ranks for dst in ranks if src != dst]
    else:
        yield [Flow(src, dst, wire.nbytes) for src, dst in wire.pairs]
