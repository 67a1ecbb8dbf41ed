"""The traits of a compressor, with the value that most compressors have; a member overrides what differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from paceline.menu.menu import Member
from paceline.protocols import Wire
from paceline.types import Chunk, Layout, Slot

if TYPE_CHECKING:
    from paceline.protocols import Compressor


class CompressorTraits(Member):
    """
    contractive      |u - C(u)| is smaller than |u|, so that the residual of feedback stays bounded
    shrinks          is not contractive, but has a contractive form, which feedback uses
    remembers        keeps residuals of its own, without feedback
    takes_momentum   applies momentum itself, so that the optimizer must have none
    """

    contractive: ClassVar[bool] = True
    shrinks: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    takes_momentum: ClassVar[bool] = False

    @property
    def biased(self) -> bool:
        """Return whether the expected value of the decoded payload differs from the input."""
        return True

    @property
    def loss(self) -> str:
        """Return the loss of information: "none", "rounding" or "lossy"."""
        return "lossy"

    @property
    def summable(self) -> bool:
        """Return whether payloads may be summed on the way."""
        return False

    @property
    def aligned(self) -> bool:
        """Return whether it needs whole tensors."""
        return False

    @property
    def merges(self) -> bool:
        """Return whether payloads are merged in pairs instead of gathered by all ranks."""
        return False

    @property
    def wrapped(self) -> Compressor | None:
        """Return the inner compressor whose residuals it keeps, or None."""
        return None

    @property
    def varies(self) -> str:
        """Return in words how the bytes of a step may differ from the declared ones; empty if they do not."""
        return ""

    def check(self, slots: Sequence[Slot]) -> None:
        """Refuse a model with these tensors; called once, when all tensors are known."""

    def scaled(self) -> Compressor:
        """Return the compressor to use with a loss scale, which must let infinity through."""
        return self  # type: ignore[return-value]

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        """Return the rounds of a chunk without its tail, among `size` ranks."""
        raise NotImplementedError

    def wires(self, layout: Layout, chunk: Chunk, size: int) -> Sequence[Wire]:
        """Return the rounds of a chunk: those of its body, then its tail uncompressed."""
        piece = body_of(layout, chunk)
        rounds = list(self.body(layout, piece, size)) if piece.numel else []
        tail = chunk.numel - piece.numel
        return [*rounds, Wire("sum", tail * layout.itemsize)] if tail else rounds

    def nbytes(self, layout: Layout, chunk: Chunk) -> int:
        """Return the bytes that one rank sends of a chunk, over all rounds."""
        return sum(wire.nbytes for wire in self.wires(layout, chunk, 1))


def body_of(layout: Layout, chunk: Chunk) -> Chunk:
    """Return a chunk without its tail."""
    stop = max(chunk.start, min(chunk.stop, layout.body))
    return Chunk(chunk.index, chunk.start, stop, chunk.arena)
