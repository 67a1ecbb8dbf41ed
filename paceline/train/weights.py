"""Explicit weights of neighbors. All ranks or nodes compare them, so that a mismatch raises on all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.errors import WrongCommand
from paceline.types import Mixing

Weights = Mapping[int, float] | Sequence[int] | None  # a sequence of ranks stands for weights of 1

_OPEN, _ABSENT = float("inf"), float("nan")


class Agreed:
    """The weights of all parties (ranks or nodes). The constructor raises unless both ends of each edge name it.

    An end without weights accepts any peer, with weight 1.
    """

    def __init__(
        self, hears: Tensor, sends: Tensor, what: str, party: str = "rank", keeps: Tensor | None = None
    ) -> None:
        self._hears, self._sends, self.count = hears, sends, hears.shape[0]
        self._keeps = torch.full((self.count,), _ABSENT) if keeps is None else keeps
        pairs = [(i, j) for i in range(self.count) for j in range(self.count)]
        problems = [text for i, j in pairs for text in _mismatch(hears, sends, i, j, party)]
        if problems:
            raise WrongCommand(what, why="; ".join(problems[:3]), remedy="make both sides name the edge")

    def sources(self, party: int) -> list[int]:
        """Return the parties that send to `party`, in ascending order."""
        return [j for j in range(self.count) if _edge(self._hears, self._sends, party, j)]

    def row(self, party: int, self_weight: float | None = None) -> Mixing:
        """Return the Mixing of a party. Without `self_weight`, it keeps one minus the sum of its source weights."""
        sources = [(j, _weight(self._hears, party, j) * _weight(self._sends, j, party)) for j in self.sources(party)]
        targets = tuple(i for i in range(self.count) if _edge(self._hears, self._sends, i, party))
        keep = float(self._keeps[party]) if self_weight is None else self_weight
        keep = 1.0 - sum(weight for _, weight in sources) if math.isnan(keep) else keep
        return Mixing(keep, tuple(sources), targets)

    def matrix(self) -> Tensor:
        """Return the matrix of weights. Row i has the weights that party i applies."""
        table = torch.zeros(self.count, self.count, dtype=torch.float64)
        for party in range(self.count):
            row = self.row(party)
            for peer, weight in ((party, row.keep), *row.sources):
                table[party, peer] = weight
        return table


def agree_ranks(comm: Any, src: Weights, dst: Weights, what: str) -> Agreed:
    """Gather all ranks' weights and check that both ends name each edge."""
    rows = torch.stack([_row_to_gather(comm.rank, comm.size, weights) for weights in (src, dst)])
    table = rows.new_zeros(comm.size, *rows.shape)
    comm.all_gather(rows, table, f"weights of neighbors, {what}").wait()
    return Agreed(table[:, 0], table[:, 1], what)


def agree_nodes(
    comm: Any, nodes: Sequence[Sequence[int]], self_weight: float | None, src: Weights, dst: Weights, what: str
) -> Mixing:
    """Gather the weights of nodes from all ranks, check them, and return the Mixing of this rank's node."""
    node = next(k for k, ranks in enumerate(nodes) if comm.rank in ranks)
    return agree_parties(comm, nodes, self_weight, src, dst, what, "node").row(node)


def agree_parties(
    comm: Any,
    nodes: Sequence[Sequence[int]],
    self_weight: float | None,
    src: Weights,
    dst: Weights,
    what: str,
    party: str,
) -> Agreed:
    """Gather the weights of parties, each of one rank or more, and check that both ends name each edge."""
    node = next(k for k, ranks in enumerate(nodes) if comm.rank in ranks)
    rows = [_row_to_gather(node, len(nodes), weights) for weights in (src, dst)]
    keep = torch.full_like(rows[0], _ABSENT if self_weight is None else self_weight)
    mine = torch.stack([*rows, keep])
    table = mine.new_zeros(comm.size, *mine.shape)
    comm.all_gather(mine, table, f"weights of nodes, {what}").wait()
    for ranks in nodes:
        apart = [rank for rank in ranks if not torch.equal(_bits(table[rank]), _bits(table[ranks[0]]))]
        if apart:
            raise WrongCommand(
                what,
                why=f"rank {ranks[0]} and rank {apart[0]} are on one node and pass different weights",
                remedy="the same weights on all ranks of a node",
            )
    firsts = table[[ranks[0] for ranks in nodes]]
    return Agreed(firsts[:, 0], firsts[:, 1], what, party, firsts[:, 2, 0])


def _bits(row: Tensor) -> Tensor:
    return row.view(torch.int64)


def _row_to_gather(me: int, count: int, weights: Weights) -> Tensor:
    if weights is None:
        return torch.full((count,), _OPEN, dtype=torch.float64)
    row = torch.full((count,), _ABSENT, dtype=torch.float64)
    for peer, weight in _pairs(weights):
        # the diagonal carries the error, so that all ranks raise
        if not 0 <= peer < count or peer == me:
            row[me] = peer + 1.0
        elif not math.isfinite(weight):
            row[me] = peer + 1.5
        else:
            row[peer] = weight
    return row


def _pairs(weights: Mapping[int, float] | Sequence[int]) -> Iterable[tuple[int, float]]:
    return weights.items() if isinstance(weights, Mapping) else ((rank, 1.0) for rank in weights)


def _mismatch(hears: Tensor, sends: Tensor, i: int, j: int, party: str) -> Sequence[str]:
    if i == j:
        wrong = [float(side[i, i]) for side in (hears, sends) if not torch.isnan(side[i, i]) and side[i, i] != _OPEN]
        return [_misnamed(party, i, value) for value in wrong]
    listens, is_sent = not torch.isnan(hears[i, j]), not torch.isnan(sends[j, i])
    if listens and not is_sent:
        return [] if hears[i, j] == _OPEN else [f"{party} {i} listens to {party} {j}, which does not send to it"]
    if is_sent and not listens:
        return [] if sends[j, i] == _OPEN else [f"{party} {j} sends to {party} {i}, which does not listen"]
    return []


def _misnamed(party: str, i: int, value: float) -> str:
    peer = math.floor(value) - 1
    if value % 1:
        return f"{party} {i} gives {party} {peer} a weight that is no finite number"
    return f"{party} {i} names {party} {peer}, which is not another {party}"


def _edge(hears: Tensor, sends: Tensor, i: int, j: int) -> bool:
    """Return whether j sends to i: both name the edge, or one names it and the other has no weights."""
    both = not torch.isnan(hears[i, j]) and not torch.isnan(sends[j, i])
    return i != j and both and not (hears[i, j] == _OPEN and sends[j, i] == _OPEN)


def _weight(side: Tensor, a: int, b: int) -> float:
    return 1.0 if side[a, b] == _OPEN else float(side[a, b])
