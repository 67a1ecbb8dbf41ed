"""The sum over all ranks in two phases, for schedules that run forward between them.

    phase 0   reduce-scatter   rank r gets the sum of part r            | A0+A1 |       |
    phase 1   all-gather       every rank gets all parts                 | A0+A1 | B0+B1 |

Both phases together move as many bytes as an all-reduce. This exchange is not on the menu: schedule `dear` makes it
from `allreduce`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.comm.transport import Comm, Work
from paceline.protocols import Codec
from paceline.strategy.exchanges._works import Chain
from paceline.strategy.exchanges.allreduce import AllReduce
from paceline.types import Chunk, Lane, Unit, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Halves(AllReduce):
    phases: ClassVar[int] = 2
    shares_results: ClassVar[bool] = False

    def join(self, comm: Comm, view: View, lane: Lane) -> HalvesChannel:  # type: ignore[override]
        return HalvesChannel(comm)


class HalvesChannel:
    """The channel of the two phases. A chunk that cannot be cut into equal parts travels from padded memory."""

    def __init__(self, comm: Comm) -> None:
        self._comm = self.memory = comm
        self._rooms: dict[tuple[int, str, int, Any], Tensor] = {}

    def start(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor, codec: Codec | None) -> Work:
        assert codec is None, "compose refuses compressors here: a part of a payload cannot be decoded"
        return Chain(self._reduce(unit, chunk, src) if unit.phase == 0 else self._gather(unit, chunk, dst))

    def _reduce(self, unit: Unit, chunk: Chunk, src: Tensor) -> Iterator[Work]:
        length = self._length(src)
        if length != src.numel():
            whole = self._room(chunk, "whole", length, src)
            whole[: src.numel()].copy_(src)
            src = whole
        yield self._comm.reduce_scatter(src, self._room(chunk, "part", length // self._comm.size, src), unit)

    def _gather(self, unit: Unit, chunk: Chunk, dst: Tensor) -> Iterator[Work]:
        length = self._length(dst)
        part = self._room(chunk, "part", length // self._comm.size, dst)
        out = dst if length == dst.numel() else self._room(chunk, "out", length, dst)
        yield self._comm.all_gather(part, out, unit)
        if out is not dst:
            dst.copy_(out[: dst.numel()])

    def _length(self, vector: Tensor) -> int:
        return vector.numel() + -vector.numel() % self._comm.size

    def _room(self, chunk: Chunk, use: str, numel: int, like: Tensor) -> Tensor:
        """Return memory for one chunk, the same in every step. Collective the first time."""
        key = (chunk.index, use, numel, like.dtype)
        if key not in self._rooms:
            self._rooms[key] = self._comm.allocate(numel, like.dtype)
        return self._rooms[key]

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass
