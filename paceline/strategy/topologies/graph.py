"""A user's own graph, from an edge list or from networkx.

    graph(mesh.txt)                    undirected: Metropolis-Hastings weights
    graph(mesh.txt, directed=true)     "0 1" is 0 -> 1; rank i weighs all values 1 / (1 + in-degree)

Weights in the file are used unchanged. A directed graph keeps the mean only if its columns sum to one, too. If they do
not, `doubly_stochastic` is False, and rule push_sum is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from paceline.errors import BadMember, WrongCommand
from paceline.strategy.topologies import _edges as lists
from paceline.strategy.topologies._edges import Edge
from paceline.strategy.topologies._size import check_size
from paceline.strategy.topologies._undirected import mix, wrong_mean
from paceline.strategy.topologies._weights import cut_off
from paceline.strategy.topologies.traits import TopologyTraits
from paceline.types import Mixing, View

ROW = 1e-5  # weights may have six digits, so the weight that a rank keeps is one minus the others
COLUMN = 1e-9  # a column sum that is off by more is no rounding error


@dataclass(frozen=True)
class Graph(TopologyTraits):
    """A user's graph, from a file, or from networkx with `Graph.of`; `save` writes the second kind to a file."""

    file: str
    directed: bool = False
    uniform: bool = False
    edges: tuple[Edge, ...] = field(init=False, repr=False, default=())
    rows: tuple[Mixing, ...] = field(init=False, repr=False, compare=False, default=())

    name: ClassVar[str] = "graph"

    def __post_init__(self) -> None:
        self._take(lists.read(Path(self.file)))

    @classmethod
    def of(cls, graph: Any, *, uniform: bool = False) -> Graph:
        """Make a graph from a networkx graph with nodes 0 to n - 1; the attribute `weight` is used if edges have it."""
        made = cls.__new__(cls)
        edges = lists.of_networkx(graph)
        settings = {"file": "networkx", "directed": bool(graph.is_directed()), "uniform": uniform}
        for key, value in settings.items():
            object.__setattr__(made, key, value)
        made._take(edges)
        return made

    def save(self, path: Path | str) -> Graph:
        """Write an edge list. Return the graph of that file, whose text on the command line workers can read."""
        unwritable = sorted(set(str(path)) & set("(),= \t"))
        if unwritable:
            raise WrongCommand(
                f"graph({path})", why=f"a setting cannot hold {unwritable[0]!r}", remedy="another file name"
            )
        Path(path).write_text(lists.written(self.edges))
        return replace(self, file=str(path))

    @property
    def size(self) -> int:
        return len(self.rows)

    def row(self, rank: int, view: View, step: int) -> Mixing:
        if view.size == 1:
            return Mixing(1.0, (), ())
        return self.rows[rank]

    def symmetric(self, size: int, nodes: int = 1) -> bool:
        taken = {(rank, source): weight for rank, row in enumerate(self.rows) for source, weight in row.sources}
        return size == 1 or all(taken.get((j, i)) == weight for (i, j), weight in taken.items())

    def doubly_stochastic(self, size: int, nodes: int = 1) -> bool:
        columns = [row.keep for row in self.rows]
        for row in self.rows:
            for source, weight in row.sources:
                columns[source] += weight
        return size == 1 or all(abs(column - 1) <= COLUMN for column in columns)

    def check(self, size: int, nodes: int = 1) -> None:
        """Refuse a wrong number of ranks; a single rank has no neighbors and fits any graph."""
        check_size(self, size, nodes)
        if size in (1, self.size):
            return
        beyond = next((edge for edge in self.edges if max(edge[:2]) >= size), None)
        if beyond is not None:
            raise WrongCommand(
                f"{self}, {beyond.place}",
                why=f"rank {max(beyond[:2])} does not exist among {size} ranks",
                remedy=f"-np {self.size}",
            )
        raise WrongCommand(
            f"{self} on {size} ranks", why=f"it has {self.size} ranks, 0 to {self.size - 1}", remedy=f"-np {self.size}"
        )

    def note(self, size: int, nodes: int = 1) -> str | None:
        if self.doubly_stochastic(size):
            return None
        if self.edges[0].weight is not None or self.directed:
            return f"{self} is not doubly stochastic: without rule push_sum it converges to a wrong mean"
        return wrong_mean(self)

    def _take(self, edges: tuple[Edge, ...]) -> None:
        """Check the edges and keep them with the rows that follow."""
        lists.check(edges, str(self), self.directed)
        if self.uniform and edges[0].weight is not None:
            raise BadMember(str(self), why="uniform weights beside those of the edges", remedy="leave uniform out")
        _check_reach(edges, str(self), self.directed)
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "rows", _rows(edges, str(self), directed=self.directed, uniform=self.uniform))


def _ways(edges: tuple[Edge, ...], directed: bool) -> dict[tuple[int, int], float | None]:
    """Return (from, to) -> weight, with both directions of an undirected edge."""
    weights = {(edge.source, edge.target): edge.weight for edge in edges}
    return weights if directed else weights | {(edge.target, edge.source): edge.weight for edge in edges}


def _check_reach(edges: tuple[Edge, ...], name: str, directed: bool) -> None:
    named = {rank for edge in edges for rank in edge[:2]}
    absent = next((rank for rank in range(len(named)) if rank not in named), None)
    if absent is not None:  # a rank number in it may be huge
        raise WrongCommand(
            name,
            why=f"rank {absent} cannot be reached: no edge names it, and there is a rank {max(named)}",
            remedy="number the ranks from 0 without gaps",
        )
    apart = cut_off(_ways(edges, directed), len(named))
    if apart is not None:
        raise WrongCommand(
            name,
            why=f"rank {apart[1]} cannot be reached from rank {apart[0]}",
            remedy="add edges until every rank hears of every other",
        )


def _rows(edges: tuple[Edge, ...], name: str, *, directed: bool, uniform: bool) -> tuple[Mixing, ...]:
    ways = _ways(edges, directed)
    size = 1 + max(max(way) for way in ways)
    heard: list[list[int]] = [[] for _ in range(size)]
    hearing: list[list[int]] = [[] for _ in range(size)]
    for source, target in sorted(ways):
        if source != target:
            heard[target].append(source)
            hearing[source].append(target)
    if edges[0].weight is not None:
        return tuple(_weighted(rank, heard[rank], tuple(hearing[rank]), ways, name) for rank in range(size))
    if directed:
        return tuple(_uniform(heard[rank], tuple(hearing[rank])) for rank in range(size))
    return tuple(mix(rank, lambda peer: tuple(heard[peer]), uniform) for rank in range(size))


def _uniform(heard: list[int], targets: tuple[int, ...]) -> Mixing:
    weight = 1 / (len(heard) + 1)
    return Mixing(weight, tuple((source, weight) for source in heard), targets)


def _weighted(
    rank: int, heard: list[int], targets: tuple[int, ...], ways: dict[tuple[int, int], float | None], name: str
) -> Mixing:
    sources = tuple((source, ways[source, rank] or 0.0) for source in heard)
    others = sum(weight for _, weight in sources)
    keep = ways.get((rank, rank))
    total = others + (max(0.0, 1 - others) if keep is None else keep)
    if abs(total - 1) > ROW:
        raise WrongCommand(
            name,
            why=f"the weights of rank {rank} sum to {total:.6g}, not to 1",
            remedy="smaller weights" if keep is None else f"leave '{rank} {rank}' out: it keeps the rest",
        )
    return Mixing(max(0.0, 1 - others), sources, targets)
