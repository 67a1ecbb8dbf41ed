"""Chunks travel as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.menu import Member
from paceline.protocols import Comm
from paceline.types import Chunk, Layout


@dataclass(frozen=True)
class NoCompression(Member):
    name: ClassVar[str] = "none"
    loss: ClassVar[str] = "none"
    summable: ClassVar[bool] = True
    biased: ClassVar[bool] = False
    contractive: ClassVar[bool] = True
    aligned: ClassVar[bool] = False

    def nbytes(self, layout: Layout, chunk: Chunk) -> int:
        return chunk.numel * layout.itemsize

    def bind(self, layout: Layout, comm: Comm, dtype: Any, shared: bool) -> None:
        return None
