"""nccl for CUDA tensors. It is written but has not been run on a GPU yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.comm.lockstep import Combine
from paceline.comm.sums import add_up
from paceline.comm.torchdist import GlooComm, Message, TorchDist
from paceline.comm.torchwork import Together, TorchWork
from paceline.errors import WrongCommand
from paceline.types import Piece


class NcclComm(TorchDist):
    backend = "nccl"

    def limit(self, deadline: float | None) -> tuple[timedelta, ...]:
        """Only who gives a deadline blocks the host; without one the stream waits, and the group has a limit itself."""
        return () if deadline is None else super().limit(deadline)

    def all_sum(self, src: Tensor, dst: Tensor, key: object = "") -> TorchWork:
        return self._on_device(super().all_sum, src, dst, key)

    def all_gather(self, src: Tensor, dst: Tensor, key: object = "") -> TorchWork:
        return self._on_device(super().all_gather, src, dst, key)

    def _on_device(self, start: Callable[..., TorchWork], src: Tensor, dst: Tensor, key: object) -> TorchWork:
        """Small tables of the host, such as counts of right answers, travel through memory of the GPU."""
        device = self._device()
        if src.device.type == device.type:
            return start(src, dst, key)
        there = torch.empty_like(dst, device=device)
        return start(src.to(device), there, key).then(lambda: dst.copy_(there))

    def _post(self, receives: Sequence[Message], sends: Sequence[Message]) -> list[Any]:
        """As one batch: NCCL begins a lone message of a pair after the one before, so two that both listen wait."""
        ops = [dist.P2POp(dist.irecv, part, self.members[peer], self._group) for part, peer in receives if part.numel()]
        ops += [dist.P2POp(dist.isend, part, self.members[peer], self._group) for part, peer in sends if part.numel()]
        return dist.batch_isend_irecv(ops) if ops else []

    def sum_by(
        self,
        src: Tensor,
        dst: Tensor,
        pieces: Sequence[Piece],
        givers: int,
        key: object = "",
        combine: Combine = add_up,
    ) -> TorchWork:
        """All that goes to owners is one batch, all that comes back another; the stream keeps their order."""
        flat, out, others = src.reshape(-1), dst.view(-1), [peer for peer in range(givers) if peer != self.rank]
        theirs = [piece for piece in pieces if piece.owner != self.rank and self.rank < givers]
        mine = [piece for piece in pieces if piece.owner == self.rank]
        heard = [
            [flat[start:stop] if peer == self.rank else flat.new_empty(stop - start) for peer in range(givers)]
            for _, start, stop in mine
        ]
        asked = [(parts[peer], peer) for parts in heard for peer in others]
        pushed = self._post(asked, [(flat[start:stop], owner) for owner, start, stop in theirs])
        self._start("sum_by", key, Together(pushed)).wait()  # the host goes on
        for parts, (_, start, stop) in zip(heard, mine, strict=True):
            combine(out[start:stop], parts, start)
        told = [(out[start:stop], owner) for owner, start, stop in theirs]
        for part, peer in (*asked, *told):
            self._received[self.members[peer]] += part.nbytes
        pulled = self._post(told, [(out[start:stop], peer) for _, start, stop in mine for peer in others])
        return self._start("sum_by", key, Together(pulled))

    def _meet(self, seconds: float) -> None:
        """NCCL has one limit for all that a group does."""
        self.barrier()

    def _device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())


def around_process_group() -> TorchDist:
    """The comm of ranks that torch.distributed has joined already, over a group of its own. Collective."""
    if not dist.is_initialized():
        raise WrongCommand(
            "there is no process group yet",
            why="ranks of stock DDP meet in torch.distributed",
            remedy="torch.distributed.init_process_group() first",
        )
    kind = NcclComm if dist.get_backend() == "nccl" else GlooComm
    return kind(dist.get_rank(), dist.get_world_size())
