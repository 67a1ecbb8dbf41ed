"""Sum the virtual shards of a global batch. In deterministic mode, bits do not depend on which member has which shard.

    fast            every member adds its shards one after another; the sums are added in rank order, or along a ring
    deterministic   one binary tree over all shards, independent of their owners: (0+1) + (2+3), ...

A member owns a contiguous range of shards. In deterministic mode it adds every whole subtree inside its range and sends
the sums of these subtrees. Each part of the vector has an owner, which adds the subtrees of all members in tree order.

    memory   | block 0: row 0, row 1, ... | block 1: row 0, row 1, ... |      one row per subtree, same on all members
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from paceline.comm.faults import fault
from paceline.comm.transport import Comm
from paceline.elastic.protocol import subtrees
from paceline.types import Piece, spread

BLOCK = 1 << 14  # elements
CHUNKS = 4  # parts in which a vector is copied into memory that other members read


class ShardSum:
    """The sum of one member's shards in one step. Shards are added one after another."""

    def __init__(self, shards: range, *, deterministic: bool) -> None:
        self._next, self._tree = shards.start, deterministic
        self._parts: list[tuple[range, Tensor]] = []

    def add(self, vector: Tensor) -> None:
        """Add the vector of the next shard. The vector may be overwritten by later sums."""
        self._parts.append((range(self._next, self._next + 1), vector))
        self._next += 1
        while len(self._parts) > 1 and (not self._tree or _siblings(self._parts[-2][0], self._parts[-1][0])):
            right, left = self._parts.pop(), self._parts.pop()
            self._parts.append((range(left[0].start, right[0].stop), left[1].add_(right[1])))

    @property
    def rows(self) -> list[Tensor]:
        return [vector for _, vector in self._parts]


def _siblings(left: range, right: range) -> bool:
    return len(left) == len(right) and left.stop == right.start and left.start % (2 * len(left)) == 0


def tree_sum(parts: Sequence[tuple[range, Tensor]]) -> Tensor:
    """Add the sums of subtrees: first siblings, as in the binary tree over all shards, then the rest left to right."""
    merged: list[tuple[range, Tensor]] = []
    for part in parts:
        merged.append(part)
        while len(merged) > 1 and _siblings(merged[-2][0], merged[-1][0]):
            right, left = merged.pop(), merged.pop()
            merged.append((range(left[0].start, right[0].stop), left[1] + right[1]))
    total = merged[0][1]
    for _, vector in merged[1:]:
        total = total + vector
    return total


class ShardExchange:
    """Adds the rows of all members of a group. Every new group needs a new one. Creating it is collective."""

    def __init__(
        self, comm: Comm, numel: int, dtype: torch.dtype, shares: Sequence[range], *, deterministic: bool
    ) -> None:
        self._comm, self._numel = comm, numel
        self._trees = [subtrees(share, shares[-1].stop) if deterministic else (share,) for share in shares]
        self._rows = max(len(trees) for trees in self._trees)
        self._ring = bool(comm.segment) and not deterministic  # a ring sends less to one host at a time
        # A comm that cuts messages must not cut between the rows of a block, because their elements are added.
        self._block = min(BLOCK, comm.segment // (self._rows * dtype.itemsize)) if comm.segment else BLOCK
        blocks = -(-numel // self._block)
        together = self._rows * self._block
        self._shape = (blocks, self._rows, self._block)
        self._source = comm.allocate(blocks * together, dtype)
        self._result = comm.allocate_result(blocks * together, dtype)
        bounds = [bound * together for bound in spread(blocks, comm.size)]
        longest = comm.segment // (together * dtype.itemsize) * together if comm.segment else blocks * together
        self._pieces = [
            Piece(rank, start, min(start + longest, bounds[rank + 1]))
            for rank in range(comm.size)
            for start in range(bounds[rank], bounds[rank + 1], longest)
        ]

    def sum(self, rows: Sequence[Tensor], key: object) -> None:
        """Exchange the rows of this member. Afterwards `total` returns the sum."""
        places = self._source.view(self._shape)
        for row, vector in enumerate(rows):
            self._show(vector, places[:, row])
        if self._ring:
            self._comm.all_sum(self._source, self._result, key).wait()
            return
        self._comm.sum_by(self._source, self._result, self._pieces, self._comm.size, key, self._combine).wait()

    def _show(self, vector: Tensor, places: Tensor) -> None:
        """Copy a vector into the blocks of one row. The unused end of the last block is not written."""
        whole = vector.numel() // self._block
        blocks = vector[: whole * self._block].view(whole, self._block)
        for start, stop in pairwise(spread(whole, CHUNKS)):
            places[start:stop].copy_(blocks[start:stop])
            if not self._comm.segment:  # the memory is shared; a comm that sends it passes this point itself
                fault("after a chunk")
        if whole * self._block < vector.numel():
            places[whole, : vector.numel() - whole * self._block].copy_(vector[whole * self._block :])

    def _combine(self, out: Tensor, parts: Sequence[Tensor], start: int) -> None:
        views = [part.view(-1, self._rows, self._block) for part in parts]
        rows = [
            (tree, view[:, row])
            for trees, view in zip(self._trees, views, strict=True)
            for row, tree in enumerate(trees)
        ]
        out.view(-1, self._rows, self._block)[:, 0].copy_(tree_sum(rows))
        fault("after the reduction")

    def total(self) -> Tensor:
        """Return a copy of the sum."""
        return self._result.view(self._shape)[:, 0].reshape(-1)[: self._numel].clone()

    def close(self) -> None:
        self._comm.release(self._source)
        self._comm.release(self._result)
