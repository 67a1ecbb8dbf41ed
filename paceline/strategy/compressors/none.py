"""No compression: chunks travel as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.comm.transport import Comm
from paceline.protocols import Wire
from paceline.strategy.compressors.traits import CompressorTraits
from paceline.types import Chunk, Layout


@dataclass(frozen=True)
class NoCompression(CompressorTraits):
    name: ClassVar[str] = "none"
    loss: ClassVar[str] = "none"
    summable: ClassVar[bool] = True
    biased: ClassVar[bool] = False

    def nbytes(self, layout: Layout, chunk: Chunk) -> int:
        return chunk.numel * layout.itemsize

    def wires(self, layout: Layout, chunk: Chunk, size: int) -> Sequence[Wire]:
        return (Wire("sum", self.nbytes(layout, chunk)),)

    def bind(self, layout: Layout, comm: Comm, dtype: Any, shared: bool) -> None:
        return None
