"""Convert a link for compressed chunks. Plans count uncompressed bytes; the link carries compressed ones."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.protocols import Compressor, Wire
from paceline.types import Chunk, Layout, Link


def seconds_of(wires: Sequence[Wire], size: int, link: Link) -> float:
    """Return the seconds that the rounds of one chunk take among `size` ranks, one after another."""
    return sum(link.seconds(_as_sum(wire, size)) for wire in wires)


def coded_link(link: Link, compressor: Compressor, layout: Layout, size: int) -> Link:
    """Return a link on which an uncompressed chunk takes as long as its compressed rounds take on `link`."""
    wires = compressor.wires(layout, Chunk(0, 0, layout.body), size)
    nbytes = sum(_as_sum(wire, size) for wire in wires)
    if not nbytes:
        return link
    return Link(len(wires) * link.latency, link.bandwidth * layout.body * layout.itemsize / nbytes)


def _as_sum(wire: Wire, size: int) -> float:
    """Return the bytes of an all-reduce in which a rank receives as much as in this round."""
    if wire.combine == "sum" or size == 1:
        return wire.nbytes
    received = wire.nbytes * (size - 1 if wire.combine == "gather" else 1)
    return received / (2 * (size - 1) / size)
