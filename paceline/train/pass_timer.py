"""Time forward and backward of a user's own loop with hooks on the model.

    model(x)            |-- forward --|        hooks before and after the model
    criterion(...)                             belongs to no part
    loss.backward()          |-- backward --|  from the first gradient of an output to the end of the whole backward

Forwards without gradients, which evaluate, are not timed, and neither are those that a checkpoint repeats in backward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from paceline.engine.gates import for_one

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_NONE = -1  # graph tasks are numbered from 0


class PassTimer:
    """Seconds of forward and backward since the last `take`, over all calls of the model."""

    def __init__(self, model: nn.Module, clock: Callable[[], float] = time.perf_counter) -> None:
        self._model, self._clock = model, clock
        self._spent = {"forward": 0.0, "backward": 0.0}
        self._forward: float | None = None  # when the forward began that is under way
        self._backward: float | None = None  # when the backward began that is under way
        self._hooks = [
            model.register_forward_pre_hook(for_one(model, self._enter), prepend=True),
            model.register_forward_hook(for_one(model, self._leave), always_call=True),
        ]

    def take(self) -> dict[str, float]:
        """Return the seconds of each part and start again at zero."""
        spent, self._spent = self._spent, dict.fromkeys(self._spent, 0.0)
        return spent

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _enter(self, module: nn.Module, arguments: Any) -> None:
        # A hook that did anything inside torch.compile would become part of the compiled model.
        if torch.compiler.is_compiling() or module is not self._model:
            return
        if torch.is_grad_enabled() and _graph_task() == _NONE:
            self._backward = None  # an earlier backward has failed
            self._forward = self._clock()

    def _leave(self, module: nn.Module, arguments: Any, result: Any) -> None:
        if torch.compiler.is_compiling() or module is not self._model or self._forward is None:
            return
        self._spent["forward"] += self._clock() - self._forward
        self._forward = None
        for output in _with_gradient(result):
            output.register_hook(self._reached)

    def _reached(self, gradient: Tensor) -> None:
        """Note that backward has reached an output of the model."""
        if self._backward is None and not torch.compiler.is_compiling():
            self._backward = self._clock()
            _call_at_end(self._other_callbacks_follow)

    def _other_callbacks_follow(self) -> None:
        """Queue the end once more: other callbacks, which exchange gradients, are part of this backward."""
        _call_at_end(self._end)

    def _end(self) -> None:
        if self._backward is not None:
            self._spent["backward"] += self._clock() - self._backward
            self._backward = None


def _call_at_end(act: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(act)


def _with_gradient(result: Any) -> Iterator[Tensor]:
    """Yield the outputs of a model that backward will reach."""
    for leaf in tree_leaves(result):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            yield leaf
