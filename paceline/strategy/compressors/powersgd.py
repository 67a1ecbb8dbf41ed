"""A low-rank approximation of each matrix: two sums of thin matrices instead of one large sum.

    P = sum_p M_p Q          P = orthonormal columns of P
    Q = sum_p M_p^T P        dst = P Q^T; Q, with columns of length 1, is the start of the next step

If a column of Q becomes zero, the next step starts from the column that this step began with; otherwise P would have a
zero column forever.

M is a tensor as a matrix of shape[0] rows. Vectors, and matrices that would not become smaller, are sent unchanged. The
operator alone loses everything that does not fit into `rank` columns: use feedback(powersgd(rank=2)). The residual of
worker p is M_p - P (M_p^T P)^T, computed from its own matrix, so it stays bounded even if workers disagree.

T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", NeurIPS 2019.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.comm.transport import Comm
from paceline.errors import BadMember, WrongCommand
from paceline.protocols import Payload, Rounds, Wire
from paceline.strategy.compressors._codec import Lossy, Rooms, check_least, tensors_in
from paceline.types import Chunk, Layout, Slot

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PowerSgd(Lossy):
    rank: int = 2
    seed: int = 0

    name: ClassVar[str] = "powersgd"
    summable: ClassVar[bool] = True
    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_least(self, "rank", 1)

    def check(self, slots: Sequence[Slot]) -> None:
        """Refuse a model whose matrices are all smaller than the rank in rows or columns."""
        matrices = [slot for slot in slots if len(slot.shape) > 1 and slot.numel]
        sides = [min(slot.shape[0], slot.numel // slot.shape[0]) for slot in matrices]
        if sides and self.rank > max(sides):
            raise BadMember(
                f"{self}",
                why=f"no matrix of the model has more than {max(sides)} rows and columns",
                remedy=f"powersgd(rank={min(2, max(sides))})",
            )

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        thin, thick = sort(layout, piece, self.rank)
        left = sum(matrix.rows * self.rank for matrix in thin) + sum(stop - start for start, stop in thick)
        right = sum(matrix.columns * self.rank for matrix in thin)
        wires = Wire("sum", 4 * left), Wire("sum", 4 * right)
        return wires if thin else wires[:1]

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> LowRank:
        return LowRank(self, layout, Rooms(comm, shared))


@dataclass(frozen=True)
class Matrix:
    """A whole tensor in a piece that becomes smaller by factoring."""

    slot: int
    start: int
    rows: int
    columns: int

    def of(self, vector: Tensor) -> Tensor:
        return vector[self.start : self.start + self.rows * self.columns].view(self.rows, self.columns)


def sort(layout: Layout, piece: Chunk, rank: int) -> tuple[list[Matrix], list[tuple[int, int]]]:
    """Return the matrices of a piece, and the ranges of everything else."""
    thin, thick = [], []
    for index, start, stop in tensors_in(layout, piece):
        slot = layout.slots[index]
        rows = slot.shape[0] if len(slot.shape) > 1 else 1
        columns = slot.numel // max(1, rows)
        if stop - start == slot.numel and rank * (rows + columns) < slot.numel:
            thin.append(Matrix(index, start, rows, columns))
        else:
            thick.append((start, stop))
    return thin, thick


class LowRank:
    """One Q per matrix, the same on all ranks; the first is drawn from the tensor's name.

    P and Q are kept as `rank` rows: products with tall thin matrices are many times slower.
    """

    def __init__(self, member: PowerSgd, layout: Layout, rooms: Rooms) -> None:
        self._rank, self._seed, self._layout, self._rooms = member.rank, member.seed, layout, rooms
        self._starts: dict[str, Tensor] = {}

    def rounds(self, piece: Chunk, src: Tensor, dst: Tensor, rest: Tensor | None) -> Rounds:
        thin, thick = sort(self._layout, piece, self._rank)
        plain = sum(m.rows for m in thin) * self._rank
        numel = plain + sum(stop - start for start, stop in thick)
        left, left_sum = self._rooms.pair(("P", piece.start), numel, src.dtype)
        self._project(thin, src, left)
        pack(src, thick, left[plain:])
        yield Payload("sum", left, left_sum)
        unpack(dst, thick, left_sum[plain:])
        if rest is not None:
            for start, stop in thick:
                rest[start:stop] = 0
        if thin:
            yield from self._second(piece, thin, src, dst, rest, left_sum)

    def _second(
        self, piece: Chunk, thin: Sequence[Matrix], src: Tensor, dst: Tensor, rest: Tensor | None, left_sum: Tensor
    ) -> Rounds:
        import torch

        bases = [torch.linalg.qr(p.t()).Q.t().contiguous() for p in self._cut(left_sum, [m.rows for m in thin])]
        columns = [m.columns for m in thin]
        right, right_sum = self._rooms.pair(("Q", piece.start), sum(columns) * self._rank, src.dtype)
        for matrix, basis, q in zip(thin, bases, self._cut(right, columns), strict=True):
            torch.mm(basis, matrix.of(src), out=q)
            if rest is not None:
                matrix.of(rest).addmm_(basis.t(), q, alpha=-1)
        yield Payload("sum", right, right_sum)
        for matrix, basis, q in zip(thin, bases, self._cut(right_sum, columns), strict=True):
            torch.mm(basis.t(), q, out=matrix.of(dst))
            name = self._layout.slots[matrix.slot].name
            self._starts[name] = at_length_one(q, self._starts[name])

    def _project(self, thin: Sequence[Matrix], src: Tensor, left: Tensor) -> None:
        import torch

        for matrix, p in zip(thin, self._cut(left, [m.rows for m in thin]), strict=True):
            torch.mm(self._start(matrix), matrix.of(src).t(), out=p)

    def _cut(self, vector: Tensor, lengths: Sequence[int]) -> Iterator[Tensor]:
        """Yield views of rank x length, one after another."""
        start = 0
        for length in lengths:
            yield vector[start : start + length * self._rank].view(self._rank, length)
            start += length * self._rank

    def _start(self, matrix: Matrix) -> Tensor:
        import torch

        name = self._layout.slots[matrix.slot].name
        if name not in self._starts:
            dice = torch.Generator().manual_seed(zlib.crc32(name.encode()) + self._seed)
            self._starts[name] = torch.randn(self._rank, matrix.columns, generator=dice)
        return self._starts[name]

    def state(self) -> Mapping[str, Any]:
        return {"starts": {name: q.clone() for name, q in self._starts.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        saved = state.get("starts", {})
        for name, q in saved.items():
            if len(q) != self._rank:
                raise WrongCommand(
                    f"the saved state of {name}",
                    why=f"it is of powersgd(rank={len(q)}), and this run has rank {self._rank}",
                    remedy=f"powersgd(rank={len(q)}), or load model and optimizer alone",
                )
        self._starts = {name: q.clone() for name, q in saved.items()}


def at_length_one(q: Tensor, before: Tensor) -> Tensor:
    """Scale rows to length 1, so that M Q overflows only if M does. A row of zeros is replaced by that of `before`."""
    sizes = q.abs().amax(dim=1, keepdim=True)
    # First divide by the largest number, because squares of large or tiny numbers leave the range of float32.
    rows = q / sizes
    known = (sizes > 0) & sizes.isfinite()
    return (rows / rows.norm(dim=1, keepdim=True)).where(known, before)


def pack(src: Tensor, ranges: Sequence[tuple[int, int]], out: Tensor) -> None:
    at = 0
    for start, stop in ranges:
        out[at : at + stop - start].copy_(src[start:stop])
        at += stop - start


def unpack(dst: Tensor, ranges: Sequence[tuple[int, int]], values: Tensor) -> None:
    at = 0
    for start, stop in ranges:
        dst[start:stop].copy_(values[at : at + stop - start])
        at += stop - start
