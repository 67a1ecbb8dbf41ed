"""Send every element whose magnitude reaches a threshold; their number differs by rank and step.

    round 0    every rank sends the number of its elements
    round 1    indices and values, padded to the longest payload; or the dense vector, if that is shorter

The threshold applies to the gradient of one worker; it does not depend on the number of workers. With feedback, no
element of the residual exceeds it.

N. Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from paceline.comm.transport import Comm
from paceline.errors import BadMember
from paceline.protocols import Rounds, Wire
from paceline.strategy.compressors._codec import Lossy, Stateless
from paceline.strategy.compressors._gathered import gather
from paceline.strategy.compressors._select import at_least
from paceline.strategy.compressors._sparse import EACH, pack, unpack
from paceline.types import Chunk, Layout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Threshold(Lossy):
    above: float = 0.001

    name: ClassVar[str] = "threshold"

    def __post_init__(self) -> None:
        if not 0 < self.above < float("inf"):
            raise BadMember(f"{self}", why=f"a magnitude is above 0; got {self.above:g}", remedy="threshold(0.001)")

    @property
    def varies(self) -> str:
        return "sends what reaches the threshold: the bytes shown are the most that it can be"

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        """Return the largest payloads that can occur; the real sizes depend on the gradients."""
        return Wire("gather", 8), Wire("gather", 4 * piece.numel)

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> Reaching:
        return Reaching(self.above / comm.size, comm.size)


class Reaching(Stateless):
    def __init__(self, least: float, size: int) -> None:
        self._least, self._size = np.float32(least), size

    def rounds(self, piece: Chunk, src: Tensor, dst: Tensor, rest: Tensor | None) -> Rounds:
        x, total = src.numpy(), dst.numpy()
        where, _ = at_least(x, self._least)
        values = x[where]
        counts = np.empty((self._size, 8), dtype=np.uint8)
        yield gather(np.array([where.size]).view(np.uint8), counts)
        longest = int(counts.view(np.int64).max())
        if rest is not None:
            rest.numpy()[where] = 0
        total.fill(0)
        if EACH * longest >= 4 * x.size:
            code = np.zeros(x.size, dtype=np.float32)
            code[where] = values
            rows = np.empty((self._size, code.nbytes), dtype=np.uint8)
            yield gather(code.view(np.uint8), rows)
            for row in rows:
                total += row.view(np.float32)
        elif longest:
            fill = longest - where.size  # index 0 with value 0 changes nothing
            code = pack(np.pad(where, (0, fill)), np.pad(values, (0, fill)), x.size)
            rows = np.empty((self._size, code.size), dtype=np.uint8)
            yield gather(code, rows)
            for row, count in zip(rows, counts.view(np.int64).reshape(-1), strict=True):
                places, numbers = unpack(row)
                total[places[:count]] += numbers[:count]
