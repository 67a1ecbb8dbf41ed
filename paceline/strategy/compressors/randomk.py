"""Random elements, the same on all ranks, so that they can be summed on the way and need no indices.

    C(u) = d/k  u[S]        |S| = k, without replacement: unbiased

Inside feedback it is not scaled by d/k, because then the residual would grow by the factor d/k - 1 with every step.

S. U. Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.comm.transport import Comm
from paceline.protocols import Payload, Rounds, Wire
from paceline.strategy.compressors._codec import Lossy, Rooms, check_ratio
from paceline.strategy.compressors._dice import Dice
from paceline.strategy.compressors._select import count_of
from paceline.types import Chunk, Layout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RandomK(Lossy):
    ratio: float = 0.01
    seed: int = 0

    name: ClassVar[str] = "randomk"
    summable: ClassVar[bool] = True
    biased: ClassVar[bool] = False
    contractive: ClassVar[bool] = False
    shrinks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ratio(self)

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        return (Wire("sum", 4 * count_of(self.ratio, piece.numel)),)

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> Chosen:
        return Chosen(self.ratio, Dice(self.seed, rank=None), Rooms(comm, shared), scaled=not shrunk)


class Chosen:
    def __init__(self, ratio: float, dice: Dice, rooms: Rooms, scaled: bool) -> None:
        self._ratio, self._dice, self._rooms, self._scaled = ratio, dice, rooms, scaled

    def rounds(self, piece: Chunk, src: Tensor, dst: Tensor, rest: Tensor | None) -> Rounds:
        count = count_of(self._ratio, piece.numel)
        where = self._dice.choose(piece.numel, count)
        sent, total = self._rooms.pair(piece.start, count, src.dtype)
        sent.numpy()[:] = src.numpy()[where]
        if self._scaled:
            sent.mul_(piece.numel / count)
        elif rest is not None:
            rest.numpy()[where] = 0
        yield Payload("sum", sent, total)
        dst.zero_()
        dst.numpy()[where] = total.numpy()

    def state(self) -> Mapping[str, Any]:
        return self._dice.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._dice.restore(state)
