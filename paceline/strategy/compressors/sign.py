"""One bit per element, with a majority vote: every rank receives all signs, the majority decides, and a tie is +1.

    dst[i] = sign(sum_p sign(g_p[i]))        sign(0) = +1

With a momentum (signum), ranks send the sign of m = momentum m + (1 - momentum) g. The result does not depend on the
scale of the gradients, so the learning rate is the step: use a small one.

J. Bernstein et al., "signSGD with Majority Vote is Communication Efficient and Fault Tolerant", ICLR 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from paceline.comm.transport import Comm
from paceline.protocols import Rounds, Wire
from paceline.strategy.compressors._bits import pack_signs, spell, vote, words
from paceline.strategy.compressors._codec import Lossy, by_name, check_momentum, put_back
from paceline.strategy.compressors._gathered import gather
from paceline.types import Chunk, Layout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sign(Lossy):
    momentum: float = 0.0

    name: ClassVar[str] = "sign"
    contractive: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_momentum(self)

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        return (Wire("gather", words(piece.numel)),)

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> Vote:
        return Vote(self.momentum, layout, comm.size)


class Vote:
    def __init__(self, momentum: float, layout: Layout, size: int) -> None:
        import torch

        self._momentum, self._layout, self._size = momentum, layout, size
        self._mean = torch.zeros(layout.body if momentum else 0)

    def rounds(self, piece: Chunk, src: Tensor, dst: Tensor, rest: Tensor | None) -> Rounds:
        if self._momentum:
            src = self._mean[piece.start : piece.stop].lerp_(src, 1 - self._momentum)
        code = np.empty(words(piece.numel), dtype=np.uint8)
        pack_signs(src.numpy(), code)
        rows = np.empty((self._size, code.size), dtype=np.uint8)
        yield gather(code, rows)
        spell(vote(list(rows)), dst.numpy(), -1.0, 1.0)

    def state(self) -> Mapping[str, Any]:
        return {"mean": by_name(self._layout, self._mean)} if self._momentum else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        if self._momentum:
            put_back(self._layout, self._mean, state.get("mean", {}))
