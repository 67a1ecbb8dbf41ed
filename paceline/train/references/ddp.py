"""Stock torch DistributedDataParallel, with gloo on CPUs and nccl on GPUs. Gradients are views of its buckets."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paceline.comm.transport import Comm
from paceline.engine.device import Device
from paceline.train.references._watched import WatchedDdp
from paceline.train.references.limit import Limit
from paceline.train.scaling import LossScale
from paceline.types import Noted


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
        self._watched: WatchedDdp | None = None
        self._watchable = device.kind == "cpu" and dist.is_initialized()
        self._hold()

    @property
    def buckets(self) -> Sequence[int]:
        """Bytes of each bucket that is all-reduced in a step, from DDP's own logging data."""
        logged = self.model._get_ddp_logging_data()  # type: ignore[operator]
        sizes = str(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "")
        return [int(size) for size in sizes.split(",") if size.strip()]

    def record_events(self, log: list[Noted] | None) -> None:
        """Append the events of the next steps to `log`; on CPUs also the events of buckets. None stops recording."""
        super().record_events(log)
        if self._watched is not None:
            self._watched.close()
            self._watched = None
        if log is not None and self._watchable:
            self._watched = WatchedDdp(self.model, log, lambda: self.steps)
        self._hold()

    def _hold(self) -> None:
        """Enter no_sync() of DDP before every backward that only accumulates, so that DDP does not exchange."""
        self._waiting.close()
        if self._micro + 1 < self.accumulate:
            self._waiting.enter_context(self.no_sync())

    def step(self, closure: Callable[[], Tensor] | None = None) -> bool:
        acted = super().step(closure)
        self._hold()
        return acted

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Accumulate gradients inside the with-block. The next backward after it exchanges the sum."""
        acting = self.model if self._watched is None else self._watched.ddp
        return acting.no_sync()  # type: ignore[operator]

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
