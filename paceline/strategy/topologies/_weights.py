"""Properties of a topology: its weights as a matrix, its mixing rate, its traffic, and whether it is connected.

y = W x,  W[i, j] is the weight of rank j's value on rank i;  rows sum to one
mixing rate: the largest share of the distance to the mean that can be left after a step
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from paceline.protocols import Topology
from paceline.types import Mixing, View

if TYPE_CHECKING:
    import numpy as np

    Matrix = np.ndarray[Any, np.dtype[np.float64]]

NOTHING = 1e-12  # a norm below this is rounding: entries are at most 1, with errors of 1e-16


def placement(size: int, nodes: int = 1) -> tuple[int, ...]:
    """Return the node of each rank; consecutive ranks share a node."""
    return tuple(rank * nodes // size for rank in range(size))


def rows(topology: Topology, size: int, step: int = 0, nodes: int = 1) -> tuple[Mixing, ...]:
    """Return the weights with which each rank mixes at a step: one row of W per rank."""
    where = placement(size, nodes)
    return tuple(topology.row(rank, View(rank, size, where), step) for rank in range(size))


def matrix(topology: Topology, size: int, step: int = 0, nodes: int = 1) -> Matrix:
    """Return W at a step."""
    import numpy as np

    weights = np.zeros((size, size))
    for rank, mixing in enumerate(rows(topology, size, step, nodes)):
        weights[rank, rank] = mixing.keep
        for source, weight in mixing.sources:
            weights[rank, source] = weight
    return weights


def mixing_rate(topology: Topology, size: int, nodes: int = 1) -> float:
    """Return the second largest singular value of W.

    For a topology that changes, it is the mean per step over a period.
    """
    import numpy as np

    if size == 1:
        return 0.0
    if topology.doubly_stochastic(size, nodes):
        return _shrinking(topology, size, nodes)
    values = np.linalg.svd(matrix(topology, size, 0, nodes), compute_uv=False)
    return float(values[1])


def _shrinking(topology: Topology, size: int, nodes: int) -> float:
    """Return the norm of (product over a period - mean), per step.

    That is its second largest singular value. The product is scaled at each step: over a long period it would fall
    below rounding errors, and an exact mean would look like a small remainder. Rounding errors in the mean do not
    shrink, so the mean is subtracted at each step.
    """
    import numpy as np

    period = topology.period(size, nodes)
    rest = np.eye(size) - 1 / size
    logarithm = 0.0
    for step in range(period):
        rest = matrix(topology, size, step, nodes) @ rest
        rest -= rest.mean(axis=0)
        norm = float(np.linalg.norm(rest, 2 if step == period - 1 else "fro"))
        if norm < NOTHING:
            return 0.0
        rest /= norm
        logarithm += float(np.log(norm))
    return float(np.exp(logarithm / period))


def models_sent(topology: Topology, size: int, nodes: int = 1) -> tuple[float, ...]:
    """Return the models that each rank sends per step, the mean over a period."""
    return _sent(topology, size, nodes, between=False)


def models_crossing(topology: Topology, size: int, nodes: int) -> tuple[float, ...]:
    """Return the models that leave each node per step, the mean over a period."""
    where = placement(size, nodes)
    leaving = [0.0] * nodes
    for rank, sent in enumerate(_sent(topology, size, nodes, between=True)):
        leaving[where[rank]] += sent
    return tuple(leaving)


def _sent(topology: Topology, size: int, nodes: int, *, between: bool) -> tuple[float, ...]:
    where, period = placement(size, nodes), topology.period(size, nodes)
    counts = [0] * size
    for step in range(period):
        for rank, mixing in enumerate(rows(topology, size, step, nodes)):
            counts[rank] += sum(not between or where[target] != where[rank] for target in mixing.targets)
    return tuple(count / period for count in counts)


def edges(topology: Topology, size: int, nodes: int = 1) -> tuple[tuple[int, int], ...]:
    """Return every (from, to) of a period, sorted."""
    return tuple(sorted(set(_edges(topology, size, nodes))))


def _edges(topology: Topology, size: int, nodes: int) -> Iterator[tuple[int, int]]:
    for step in range(topology.period(size, nodes)):
        for rank, mixing in enumerate(rows(topology, size, step, nodes)):
            yield from ((source, rank) for source, _ in mixing.sources)


def connected(topology: Topology, size: int, nodes: int = 1) -> bool:
    """Return whether, over a period, every rank reaches every other rank, directly or indirectly."""
    return cut_off(edges(topology, size, nodes), size) is None


def cut_off(edges: Iterable[tuple[int, int]], size: int) -> tuple[int, int] | None:
    """Return the first pair (from, to) without a path along the edges, where one of them is rank 0.

    None if all have paths.
    """
    forward: list[list[int]] = [[] for _ in range(size)]
    backward: list[list[int]] = [[] for _ in range(size)]
    for source, target in edges:
        forward[source].append(target)
        backward[target].append(source)
    reached, reaching = _closure(forward), _closure(backward)
    for rank in range(size):
        if rank not in reached:
            return 0, rank
        if rank not in reaching:
            return rank, 0
    return None


def _closure(onward: list[list[int]]) -> set[int]:
    """Return the ranks that can be reached from rank 0."""
    reached, ahead = {0}, [0]
    while ahead:
        fresh = [rank for rank in onward[ahead.pop()] if rank not in reached]
        reached.update(fresh)
        ahead += fresh
    return reached
