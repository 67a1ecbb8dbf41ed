"""Graphs that look the same from every rank: rank r sends to r + d for each offset d, modulo the world.

    W[r, r] = W[r, r - d] = 1 / (number of offsets + 1)

Every row is a shifted copy of the first, so that columns sum to one as well.
"""

from __future__ import annotations

from paceline.errors import BadMember
from paceline.menu.menu import Member
from paceline.strategy.topologies.traits import TopologyTraits
from paceline.types import Mixing, View

ALONE = Mixing(1.0, (), ())


class Circulant(TopologyTraits):
    def offsets(self, size: int) -> tuple[int, ...]:
        """Return the distances to the ranks that a rank sends to, each once, in the order that one_peer uses."""
        raise NotImplementedError

    def row(self, rank: int, view: View, step: int) -> Mixing:
        offsets, size = self.offsets(view.size), view.size
        weight = 1 / (len(offsets) + 1)
        sources = sorted((rank - offset) % size for offset in offsets)
        targets = sorted((rank + offset) % size for offset in offsets)
        return Mixing(weight, tuple((source, weight) for source in sources), tuple(targets))

    def symmetric(self, size: int, nodes: int = 1) -> bool:
        offsets = self.offsets(size)
        return set(offsets) == {size - offset for offset in offsets}


def one_peer_at(place: int, size: int, offset: int) -> Mixing:
    """Return a mixing that keeps one half, and takes the other half from the rank `offset` places before."""
    return Mixing(0.5, (((place - offset) % size, 0.5),), ((place + offset) % size,))


def pairs_up(offsets: tuple[int, ...], size: int) -> bool:
    """Return whether every offset leads back after two hops, so that ranks exchange in pairs."""
    return all(2 * offset == size for offset in offsets)


def refuse_irregular(text: str, of: Member) -> None:
    """Raise for a graph in which taking peers in turn does not give a permutation of the ranks at every step."""
    if not isinstance(of, Circulant):
        raise BadMember(
            text,
            why=f"{of} does not look the same from every rank, so that with one peer per step a rank hears from "
            "several or from none, and uniform weights converge to a wrong mean",
            remedy=f"one_peer(exp2), or {of} by itself",
        )
