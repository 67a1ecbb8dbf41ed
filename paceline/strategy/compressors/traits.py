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
    contractive      |u - C(u)| is smaller than |u|: what feedback keeps stays bounded
    shrinks          not contractive as it stands, but has a contractive form, which feedback uses
    remembers        keeps what it does not send by itself
    takes_momentum   applies momentum itself, so that the optimizer must have none
    """

    contractive: ClassVar[bool] = True
    shrinks: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    takes_momentum: ClassVar[bool] = False

    @property
    def biased(self) -> bool:
        """Whether the mean of what is sent is not the mean of what was to be sent."""
        return True

    @property
    def loss(self) -> str:
        """The loss of information: "none", "rounding" or "lossy"."""
        return "lossy"

    @property
    def summable(self) -> bool:
        """Whether payloads may be summed on the way."""
        return False

    @property
    def aligned(self) -> bool:
        """Whether it needs whole tensors."""
        return False

    @property
    def merges(self) -> bool:
        """Whether payloads are merged pair by pair, instead of gathered by all."""
        return False

    @property
    def wrapped(self) -> Compressor | None:
        """The compressor inside it, whose residuals it keeps."""
        return None

    @property
    def varies(self) -> str:
        """How the bytes of a step may differ from those that it declares, in words; empty where they do not."""
        return ""

    def check(self, slots: Sequence[Slot]) -> None:
        """Refuse a model with these tensors; called once, where all of them are known."""

    def scaled(self) -> Compressor:
        """The compressor to use beside a loss scale, whose infinities must arrive."""
        return self  # type: ignore[return-value]

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        """The rounds of a chunk without its tail, among `size` ranks."""
        raise NotImplementedError

    def wires(self, layout: Layout, chunk: Chunk, size: int) -> Sequence[Wire]:
        """The rounds of a chunk: those of its body, then the tail as it is."""
        piece = body_of(layout, chunk)
        rounds = list(self.body(layout, piece, size)) if piece.numel else []
        tail = chunk.numel - piece.numel
        return [*rounds, Wire("sum", tail * layout.itemsize)] if tail else rounds

    def nbytes(self, layout: Layout, chunk: Chunk) -> int:
        """Bytes that one rank offers of a chunk, over all rounds."""
        return sum(wire.nbytes for wire in self.wires(layout, chunk, 1))


def body_of(layout: Layout, chunk: Chunk) -> Chunk:
    """A chunk without its tail."""
    stop = max(chunk.start, min(chunk.stop, layout.body))
    return Chunk(chunk.index, chunk.start, stop, chunk.arena)
