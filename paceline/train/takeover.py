"""Make `optimizer.step()` do what `pace.step()` does, for training loops that call only the optimizer.

    optimizer.step()  ->  (a scheduler's own wrapper)  ->  here  ->  Pace  ->  the optimizer's own step

The optimizer's own step is also called through the attribute `step`, so that schedulers and hooks notice it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch


class Takeover:
    """Replaces the `step` of one optimizer with `act(closure)` until end() is called."""

    def __init__(self, optimizer: torch.optim.Optimizer, act: Callable[[Any], Any]) -> None:
        self._optimizer, self._own = optimizer, optimizer.step
        self._act, self._inside, self._ended = act, False, False
        own = optimizer.step

        @functools.wraps(getattr(own, "__func__", own))
        def step(_: torch.optim.Optimizer, *arguments: Any, **named: Any) -> Any:
            if self._inside or self._ended:
                return own(*arguments, **named)
            return self._act(*arguments, **named)

        # A bound method, because a learning-rate scheduler that comes later looks for its function.
        self._mine = MethodType(step, optimizer)
        optimizer.step = self._mine  # type: ignore[method-assign]

    def run(self, *arguments: Any) -> Any:
        """Call the optimizer's own step."""
        before, self._inside = self._inside, True
        try:
            return self._optimizer.step(*arguments)
        finally:
            self._inside = before

    def end(self) -> None:
        self._ended = True
        if self._optimizer.__dict__.get("step") is self._mine:
            self._optimizer.step = self._own  # type: ignore[method-assign]
