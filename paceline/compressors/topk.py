"""The largest elements by magnitude: k = max(1, floor(ratio d)) of each chunk, of equal ones those that stand first.

A. F. Aji, K. Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; with feedback,
S. U. Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.compressors.codec import Lossy, check_ratio
from paceline.compressors.select import count_of
from paceline.compressors.sparse import EACH, Largest
from paceline.protocols import Wire
from paceline.transport import Comm
from paceline.types import Chunk, Layout


@dataclass(frozen=True)
class TopK(Lossy):
    ratio: float = 0.01

    name: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        check_ratio(self)

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        return (Wire("gather", EACH * count_of(self.ratio, piece.numel)),)

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> Largest:
        return Largest(self.ratio, comm.size)
