"""One peer per step on several nodes: one rank of each node mixes with another node, the others mix inside their node.

M nodes with L ranks each; l is the position of a rank on its node, in rank order. At step t

    l = t mod L     crosses: sends to the rank at place l of the node that is d after, d = outer[t mod k_outer]
    other places    form a circle of L - 1 without l: each sends to the one that is d after, d = inner[t mod k_inner]

    2 x 4, step 0      node 0   [0]  1 -> 2 -> 3 -> 1
                             |
                       node 1   [4]  5 -> 6 -> 7 -> 5

with the offsets of `outer` on M ranks and of `inner` on L - 1, both exp2 by default, as the published benchmark ran
it. Each rank keeps one half, so that every step is half the identity and half a permutation. Three cases are not
covered by this and are defined here:

    L = 2    a rank that does not cross would have no peer, so: at even steps the two ranks of a node mix with each
             other, at odd steps both cross, by outer[(t // 2) mod k_outer]; one model per node and step on average
    L = 1    one_peer(outer) among the nodes
    M = 1    one_peer(inner) on the node

BlueFog: B. Ying, K. Yuan, H. Hu, Y. Chen, W. Yin, "BlueFog: Make Decentralized Algorithms Practical for Optimization
and Deep Learning", 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import ClassVar

from paceline.errors import WrongCommand
from paceline.menu.menu import nested
from paceline.strategy.topologies._circulant import ALONE, Circulant, one_peer_at, pairs_up, refuse_irregular
from paceline.strategy.topologies._size import check_size
from paceline.strategy.topologies.exp2 import Exp2
from paceline.strategy.topologies.traits import TopologyTraits
from paceline.types import Mixing, View


@dataclass(frozen=True)
class InnerOuter(TopologyTraits):
    inner: Circulant = nested("paceline.strategy.topologies:MENU", default=Exp2())
    outer: Circulant = nested("paceline.strategy.topologies:MENU", default=Exp2())

    name: ClassVar[str] = "inner_outer"
    directed: ClassVar[bool] = True
    changes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        refuse_irregular(str(self), self.inner)
        refuse_irregular(str(self), self.outer)

    def row(self, rank: int, view: View, step: int) -> Mixing:
        groups = self._groups(view)
        node = next(k for k, group in enumerate(groups) if rank in group)
        mine, place = groups[node], groups[node].index(rank)
        crossing = _crossing(step, len(groups), len(mine))
        if place in crossing:
            turn = step // 2 if len(mine) == 2 else step
            return _mix([group[place] for group in groups], node, self.outer, turn)
        inside = [member for k, member in enumerate(mine) if k not in crossing]
        return _mix(inside, inside.index(rank), self.inner, step)

    def period(self, size: int, nodes: int = 1) -> int:
        local = size // nodes
        outer = len(self.outer.offsets(nodes)) or 1
        inner = len(self.inner.offsets(_circle(size, nodes))) or 1
        if nodes == 1 or local == 1:
            return inner * outer  # one of the two numbers is 1
        return 2 * outer if local == 2 else lcm(local, inner, outer)

    def symmetric(self, size: int, nodes: int = 1) -> bool:
        circle = _circle(size, nodes)
        return pairs_up(self.inner.offsets(circle), circle) and pairs_up(self.outer.offsets(nodes), nodes)

    def doubly_stochastic(self, size: int, nodes: int = 1) -> bool:
        return True

    def check(self, size: int, nodes: int = 1) -> None:
        check_size(self, size, nodes)
        if size % nodes:
            self._refuse(size, nodes)

    def note(self, size: int, nodes: int = 1) -> str | None:
        if size == 1:
            return None
        if nodes == 1:
            return f"{self} on one node is one_peer({self.inner})"
        if nodes == size:
            return f"{self} with one rank per node is one_peer({self.outer})"
        if size == 2 * nodes:
            return f"{self} with two ranks per node mixes inside at even steps and crosses with both at odd steps"
        return None

    def _groups(self, view: View) -> list[list[int]]:
        """Return the ranks of each node."""
        groups: dict[int, list[int]] = {}
        for rank in range(view.size):
            groups.setdefault(view.node_of(rank), []).append(rank)
        if len({len(group) for group in groups.values()}) > 1:
            self._refuse(view.size, len(groups))
        return [groups[node] for node in sorted(groups)]

    def _refuse(self, size: int, nodes: int) -> None:
        raise WrongCommand(
            f"{self} on {size} ranks and {nodes} nodes",
            why="every node needs the same number of ranks",
            remedy=f"{nodes * max(1, size // nodes)} ranks, or one_peer(exp2)",
        )


def _crossing(step: int, nodes: int, local: int) -> tuple[int, ...]:
    """Return the places on each node that cross at this step."""
    if nodes == 1 or (local == 2 and step % 2 == 0):
        return ()
    return (0, 1) if local == 2 else (step % local,)


def _circle(size: int, nodes: int) -> int:
    """Return how many ranks of a node mix among themselves at a step."""
    local = size // nodes
    return local if nodes == 1 or local <= 2 else local - 1


def _mix(ranks: list[int], at: int, graph: Circulant, turn: int) -> Mixing:
    """Return a mixing with one peer among these ranks, in terms of global ranks."""
    offsets = graph.offsets(len(ranks))
    if not offsets:
        return ALONE
    mixing = one_peer_at(at, len(ranks), offsets[turn % len(offsets)])
    [(source, weight)], [target] = mixing.sources, mixing.targets
    return Mixing(mixing.keep, ((ranks[source], weight),), (ranks[target],))
