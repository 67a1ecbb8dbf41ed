"""The k largest elements of the sum, by merging in pairs: payloads have k elements for any number of ranks.

    round 0    0 <-> 1    2 <-> 3        each pair adds its two sparse vectors and keeps the k largest
    round 1    0 <-> 2    1 <-> 3        both partners compute the same

If P is not a power of two, each rank beyond the largest power of two first sends its vector to a rank below it, and
gets the result at the end. Elements that a merge drops go to the residual of one of the merging ranks, so no gradient
is lost:

    sum_p (g_p + e_p) = P ghat + sum_p e_p'

S. Shi et al., "A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low Bandwidth
Networks", ICDCS 2019. In the paper, a rank's residual is everything that is not in the result; this loses elements that
another pair of ranks kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from paceline.comm.transport import Comm
from paceline.protocols import Payload, Rounds, Wire
from paceline.strategy.compressors._bits import Array
from paceline.strategy.compressors._codec import Lossy, Stateless, check_ratio
from paceline.strategy.compressors._select import count_of
from paceline.strategy.compressors._sparse import EACH, pack, unpack
from paceline.strategy.compressors.topk import exact, largest
from paceline.types import Chunk, Layout

if TYPE_CHECKING:
    from torch import Tensor

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class GTopK(Lossy):
    ratio: float = 0.01

    name: ClassVar[str] = "gtopk"
    merges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ratio(self)

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        nbytes = EACH * count_of(self.ratio, piece.numel)
        return [Wire("pass", nbytes, pairs) for _, pairs in meetings(size)] or [Wire("pass", nbytes)]

    def nbytes(self, layout: Layout, chunk: Chunk) -> int:
        """Return the bytes of one message; each round sends one."""
        return sum(wire.nbytes for wire in self.wires(layout, chunk, 1))

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> Merged:
        return Merged(self.ratio, comm)


def meetings(size: int) -> Iterator[tuple[str, Pairs]]:
    """Yield the rounds among `size` ranks: "fold", "merge" or "return", and which rank sends to which."""
    core = 1 << (size.bit_length() - 1)
    extra = range(core, size)
    if extra:
        yield "fold", tuple((rank, rank - core) for rank in extra)
    stride = 1
    while stride < core:
        yield "merge", tuple((rank ^ stride, rank) for rank in range(core))
        stride *= 2
    if extra:
        yield "return", tuple((rank - core, rank) for rank in extra)


class Merged(Stateless):
    def __init__(self, ratio: float, comm: Comm) -> None:
        self._ratio, self._rank, self._size = ratio, comm.rank, comm.size

    def rounds(self, piece: Chunk, src: Tensor, dst: Tensor, rest: Tensor | None) -> Rounds:
        x, owed = src.numpy(), None if rest is None else rest.numpy()
        where = largest(x, count_of(self._ratio, x.size))
        values = x[where]
        if owed is not None:
            owed[where] = 0
        for kind, pairs in meetings(self._size):
            source = next((a for a, b in pairs if b == self._rank), None)
            target = next((b for a, b in pairs if a == self._rank), None)
            code = pack(where, values, x.size)
            heard = np.empty_like(code)
            yield handed(code, heard, source, target)
            if source is None:
                continue
            theirs = unpack(heard)
            if kind == "return":
                where, values = theirs
                continue
            ours = (where, values)
            pair = (ours, theirs) if self._rank < source else (theirs, ours)
            (where, values), (places, dropped) = merge(*pair)
            if owed is not None and self._keeps(source, kind):
                owed[places] += dropped
        total = dst.numpy()
        total.fill(0)
        total[where] = values

    def _keeps(self, source: int, kind: str) -> bool:
        """Return whether this rank keeps the residual of a merge. Only the first of the ranks that computed it does."""
        stride = abs(self._rank - source)
        return kind == "fold" or self._rank % (2 * stride) == 0


def handed(code: Array, heard: Array, source: int | None, target: int | None) -> Payload:
    import torch

    return Payload("pass", torch.from_numpy(code), torch.from_numpy(heard), source, target)


def merge(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the k largest elements of the sum of two sparse vectors of k elements, and the remaining elements."""
    count = first[0].size
    where = np.concatenate([first[0], second[0]])
    order = np.argsort(where, kind="stable")
    where, values = where[order], np.concatenate([first[1], second[1]])[order]
    starts = np.flatnonzero(np.diff(where, prepend=-1))
    where, values = where[starts], np.add.reduceat(values, starts)
    kept = np.zeros(where.size, dtype=bool)
    kept[exact(np.abs(values), count)] = True
    return (where[kept], values[kept]), (where[~kept], values[~kept])
