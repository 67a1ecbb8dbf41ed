"""Stock torch DistributedDataParallel, with gloo on CPUs and nccl on GPUs. Gradients are views of its buckets."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paceline.comm.transport import Comm
from paceline.engine.device import Device
from paceline.train.references.limit import Limit
from paceline.train.scaling import LossScale


class Ddp(Limit):
    """The reference ddp. The training loop must call its `model`, which is the DDP module."""

    replicas_differ = False
    note = "ddp: its exposed communication is inside backward and cannot be told apart"

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        comm: Comm,
        device: Device,
        accumulate: int = 1,
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
    ) -> None:
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
        super().__init__(
            wrapped,
            optimizer,
            comm=comm,
            device=device,
            accumulate=accumulate,
            clip_norm=clip_norm,
            loss_scale=loss_scale,
        )
        self._waiting = contextlib.ExitStack()
        self._hold()

    def _hold(self) -> None:
        """Enter no_sync() of DDP before every backward that only accumulates, so that DDP does not exchange."""
        self._waiting.close()
        if self._micro + 1 < self.accumulate:
            self._waiting.enter_context(self.model.no_sync())  # type: ignore[operator]

    def step(self, closure: Callable[[], Tensor] | None = None) -> bool:
        acted = super().step(closure)
        self._hold()
        return acted

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Accumulate gradients inside the with-block. The next backward after it exchanges the sum."""
        return self.model.no_sync()  # type: ignore[operator]

    def meet(self) -> None:
        """Do nothing, because the all-reduce of DDP already synchronizes the ranks."""

    def agreed(self, loss: Tensor) -> Tensor:
        """Return the mean loss of all ranks, so that line searches on all ranks take the same steps. Collective."""
        share = loss.view(1) / self.comm.size
        mean = torch.empty_like(share)
        self.comm.all_sum(share, mean, "the loss").wait()
        return mean[0]

    def close(self) -> None:
        self._waiting.close()
        super().close()


class OwnLoopDdp(Ddp):
    """DDP for a user's script that calls its own model. A race uses it to compare a script with DDP.

    DDP wraps a shallow copy of the model, which shares the parameters. While training, `forward` of the user's model
    calls DDP. In evaluation it does not, because DDP needs all ranks to take part in a forward pass.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, **settings: Any) -> None:
        inner, own_forward = copy.copy(model), model.forward
        super().__init__(inner, optimizer, **settings)

        def forward(*inputs: Any, **named: Any) -> Any:
            if model.training and torch.is_grad_enabled():
                return self.model(*inputs, **named)
            return own_forward(*inputs, **named)

        model.forward = forward
