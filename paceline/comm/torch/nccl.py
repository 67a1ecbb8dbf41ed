"""nccl for CUDA tensors. This code has not been run on a GPU yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.comm.shm.lockstep import Combine
from paceline.comm.sums import add_up
from paceline.comm.torch.gloo import GlooComm, Message, TorchDist
from paceline.comm.torch.work import TorchWork, TorchWorks
from paceline.errors import WrongCommand
from paceline.types import Piece


class NcclComm(TorchDist):
    backend = "nccl"

    def limit(self, deadline: float | None) -> tuple[timedelta, ...]:
        """Return the time limit for wait(). With a deadline the host blocks; without one, only the stream waits."""
        return () if deadline is None else super().limit(deadline)

    def all_sum(self, src: Tensor, dst: Tensor, key: object = "") -> TorchWork:
        return self._on_device(super().all_sum, src, dst, key)

    def all_gather(self, src: Tensor, dst: Tensor, key: object = "") -> TorchWork:
        return self._on_device(super().all_gather, src, dst, key)

    def _on_device(self, start: Callable[..., TorchWork], src: Tensor, dst: Tensor, key: object) -> TorchWork:
        """Copy small tensors of the host, such as counts of correct predictions, to the GPU and back."""
        device = self._device()
        if src.device.type == device.type:
            return start(src, dst, key)
        there = torch.empty_like(dst, device=device)
        return start(src.to(device), there, key).then(lambda: dst.copy_(there))

    def _post(self, receives: Sequence[Message], sends: Sequence[Message], tag: int) -> list[Any]:
        """Start messages as one batch. NCCL would run the single messages of a pair in order, which can deadlock."""
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
        """Send pieces to their owners in one batch and results back in another. The stream keeps them in order."""
        flat, out, others = src.reshape(-1), dst.view(-1), [peer for peer in range(givers) if peer != self.rank]
        theirs = [piece for piece in pieces if piece.owner != self.rank and self.rank < givers]
        mine = [piece for piece in pieces if piece.owner == self.rank]
        heard = [
            [flat[start:stop] if peer == self.rank else flat.new_empty(stop - start) for peer in range(givers)]
            for _, start, stop in mine
        ]
        incoming = [(parts[peer], peer) for parts in heard for peer in others]
        tag = self._tag(self._enter("sum_by", src, ""))
        pushed = self._post(incoming, [(flat[start:stop], owner) for owner, start, stop in theirs], tag)
        self._start("sum_by", key, TorchWorks(pushed)).wait()  # the stream waits, the host does not
        for parts, (_, start, stop) in zip(heard, mine, strict=True):
            combine(out[start:stop], parts, start)
        results = [(out[start:stop], owner) for owner, start, stop in theirs]
        for part, peer in (*incoming, *results):
            self._received[self.members[peer]] += part.nbytes
        pulled = self._post(results, [(out[start:stop], peer) for _, start, stop in mine for peer in others], tag)
        return self._start("sum_by", key, TorchWorks(pulled))

    def _meet(self, seconds: float) -> None:
        """Wait for all ranks; NCCL has one time limit per group, so `seconds` has no effect."""
        self.barrier()

    def _device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())


def around_process_group() -> TorchDist:
    """Return a comm for the ranks of torch's default process group, with a separate group. Collective."""
    if not dist.is_initialized():
        raise WrongCommand(
            "there is no process group yet",
            why="stock DDP connects its ranks through torch.distributed",
            remedy="torch.distributed.init_process_group() first",
        )
    kind = NcclComm if dist.get_backend() == "nccl" else GlooComm
    return kind(dist.get_rank(), dist.get_world_size())
