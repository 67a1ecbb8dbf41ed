"""Edge lists: the file format of a user's graph, and its checks.

    # from to [weight]          comments and empty lines are skipped
    0 1
    1 2 0.25                    either all lines have a weight or none
    2 2 0.5                     a rank with itself: the weight that rank 2 keeps

An undirected edge is written once and stands for both directions. A weight belongs to the rank that receives.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from paceline.errors import WrongCommand, short
from paceline.files.read import ABSENT, read_text

LARGEST = 16 << 20  # bytes of an edge list: a million edges


class Edge(NamedTuple):
    """An edge. `place` is its name in errors: "line 7", or "edge 0 1" in a graph without lines."""

    source: int
    target: int
    weight: float | None
    place: str


def read(path: Path) -> tuple[Edge, ...]:
    """Return the edges of a file."""
    try:
        text = read_text(path, LARGEST)
    except WrongCommand as problem:
        absent = problem.why == ABSENT
        what = f"graph({path})" if absent else f"graph({path}) cannot be read"
        why = "there is no such file" if absent else problem.why
        raise WrongCommand(what, why=why, remedy="a file of lines 'u v'") from None
    edges = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            edges.append(_edge(words, path, f"line {number}"))
    return tuple(edges)


def _edge(words: list[str], path: Path, place: str) -> Edge:
    try:
        source, target, *rest = words
        weights: list[float | None] = [float(word) for word in rest]
        [weight] = weights or [None]
        return Edge(int(source), int(target), weight, place)
    except ValueError:
        raise WrongCommand(
            f"{path}, {place}: {short(' '.join(words))}",
            why="a line is two ranks and at most a weight",
            remedy="0 1, or 0 1 0.25",
        ) from None


def of_networkx(graph: Any) -> tuple[Edge, ...]:
    """Return the edges of a networkx graph with nodes 0, 1, 2, ...; networkx is not imported."""
    try:
        nodes, edges = list(graph.nodes), list(graph.edges(data="weight"))
    except (AttributeError, TypeError):
        raise WrongCommand(f"Graph.of({type(graph).__name__})", why="it takes a networkx graph") from None
    if any(type(node) is not int for node in nodes) or sorted(nodes) != list(range(len(nodes))):
        raise WrongCommand(
            f"Graph.of({type(graph).__name__})",
            why=f"its nodes are not the ranks 0 to {len(nodes) - 1}",
            remedy="networkx.convert_node_labels_to_integers(graph)",
        )
    lonely = set(nodes) - {rank for edge in edges for rank in edge[:2]}
    if edges and lonely:
        raise WrongCommand(
            f"Graph.of({type(graph).__name__})",
            why=f"rank {min(lonely)} cannot be reached: no edge names it",
            remedy="add edges until every rank hears of every other",
        )
    return tuple(
        Edge(source, target, None if weight is None else float(weight), f"edge {source} {target}")
        for source, target, weight in edges
    )


def written(edges: Iterable[Edge]) -> str:
    """Return the edges as the lines of a file."""
    return "".join(
        f"{edge.source} {edge.target}" + ("" if edge.weight is None else f" {edge.weight!r}") + "\n" for edge in edges
    )


def check(edges: tuple[Edge, ...], name: str, directed: bool) -> None:
    """Refuse edges that are invalid, or that contradict others."""
    if not edges:
        raise WrongCommand(name, why="it has no edges", remedy="lines 'u v', such as 0 1")
    seen: dict[tuple[int, int], str] = {}
    for edge in edges:
        _check_alone(edge, name)
        if (edge.weight is None) != (edges[0].weight is None):
            raise WrongCommand(
                f"{name}, {edge.place}",
                why=f"it has {_weight(edge)} and {edges[0].place} has {_weight(edges[0])}",
                remedy="weights for all edges or for none",
            )
        way = (edge.source, edge.target)
        key = way if directed else (min(way), max(way))
        if key in seen:
            raise WrongCommand(
                f"{name}, {edge.place}",
                why=f"edge {edge.source} {edge.target} is there already: {seen[key]}",
                remedy="leave one out" if directed else "leave one out, or directed=true",
            )
        seen[key] = edge.place


def _check_alone(edge: Edge, name: str) -> None:
    where = f"{name}, {edge.place}"
    if min(edge.source, edge.target) < 0:
        raise WrongCommand(where, why=f"rank {min(edge.source, edge.target)} does not exist", remedy="ranks from 0 on")
    if edge.weight is None and edge.source == edge.target:
        raise WrongCommand(
            where,
            why=f"rank {edge.source} is its own neighbor",
            remedy="leave it out: what a rank keeps follows from the others",
        )
    if edge.weight is not None and not (isfinite(edge.weight) and edge.weight > 0):
        raise WrongCommand(where, why=f"a weight is above 0; got {edge.weight:g}", remedy="leave the edge out")


def _weight(edge: Edge) -> str:
    return "no weight" if edge.weight is None else "a weight"
