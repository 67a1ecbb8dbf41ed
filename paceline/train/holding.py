"""Backwards inside `no_sync`: gradients add up on this rank, each weighted by the samples of its batch.

    sum over backwards m    share[m] * gradient[m]        share[m] = n / N where n of the N samples are this rank's

A fresh gradient is multiplied by share * size before autograd adds it to p.grad, and the sum leaves with 1 / size. With
equal shares the factor is 1, and nothing is multiplied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_OUTSIDE = -2  # autograd gives this number to no backward
_graph_task: Callable[[], int] = torch._C._current_graph_task_id


class Holding:
    """Keeps the gradients of `no_sync` on this rank. `factor()` returns share * size of the batch in training."""

    def __init__(self, parameters: Sequence[nn.Parameter], factor: Callable[[], float]) -> None:
        self._parameters, self._factor = parameters, factor
        self.active = False  # inside no_sync
        self.weighed = False  # p.grad has gradients that were multiplied, and have not left
        self._task, self._now = _OUTSIDE, 1.0
        self._hooks: list[Any] = []

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        if not self._hooks:
            self._hooks = [p.register_hook(self._weigh) for p in self._parameters if p.requires_grad]
        before, self.active = self.active, True
        try:
            yield
        finally:
            self.active = before

    def _weigh(self, fresh: Tensor) -> Tensor | None:
        """Multiply a gradient by the factor of its batch, before autograd adds it to other gradients."""
        if not (self.active or self.weighed):
            return None
        if self._task != _graph_task():  # once for every backward
            self._task, self._now = _graph_task(), self._factor()
        self.weighed = True
        return None if self._now == 1.0 else fresh * self._now

    def left(self) -> None:
        """Record that the gradients held here have been exchanged, so that p.grad holds none that were multiplied."""
        self.weighed = False

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
