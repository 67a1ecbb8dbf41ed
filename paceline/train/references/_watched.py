"""A second DDP around the same model. Its hook records when each bucket leaves and when it is back.

The timed steps use the first DDP, which has no hook. DDP inspects the annotations of a hook, so they must not be
strings: no `from __future__ import annotations` here.
"""

import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from paceline.types import Event, Noted


class WatchedDdp:
    """Replaces `stock` in forward until it is closed. The autograd hooks of `stock` ignore backwards of this one."""

    def __init__(self, stock: nn.Module, log: list[Noted], step: Callable[[], int]) -> None:
        self.log, self.step, self._stock = log, step, stock
        self.ddp = DistributedDataParallel(stock.module, gradient_as_bucket_view=True)
        self.ddp.register_comm_hook(self, note_bucket)
        stock.forward = self._forward

    def _forward(self, *inputs: Any, **named: Any) -> Any:
        return self.ddp(*inputs, **named)

    def close(self) -> None:
        del self._stock.forward


def note_bucket(state: Any, bucket: dist.GradBucket) -> Future[Tensor]:
    """Average a bucket in the way of DDP without a hook. Record when it is sent and when its average has arrived."""
    index, step = bucket.index(), state.step()
    state.log.append(Event(time.perf_counter(), "leave", step, index))

    def back(future: Any) -> Any:
        state.log.append(Event(time.perf_counter(), "back", step, index))
        return future.value()

    return allreduce_hook(state.ddp.process_group, bucket).then(back)
