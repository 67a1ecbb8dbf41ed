"""Detect the beginning and the end of a backward, so that p.grad is the mean when `loss.backward()` returns.

    loss.backward()      hook, hook, ...            callback: models with gradients end their exchange, in wrap order
      checkpoint(use_reentrant=True)
        an inner backward: hook, hook, ...          no callback here: the outer backward goes on

Autograd runs callbacks at the end of the backward in which they were queued. A reentrant backward is separate from the
outer one. So its first hook registers a hook on the next node of the outer backward, which queues the callback there.

With several models, a backward may reach different models on different ranks. Ranks then find out with one small sum
which models were reached on any rank, and exchange all of these.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch

from paceline.errors import WorkloadError

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_NONE = -1  # graph tasks are numbered from 0


class Ending(Protocol):
    """A wrapped model that a backward may reach."""

    def end_backward(self) -> None:
        """Exchange the gradients that the backward has added."""

    def any_rank(self, marks: list[bool]) -> list[bool]:
        """Return for each mark whether any rank has set it. Collective."""


class Passes:
    """Tracks the backwards of one process, over all of its wrapped models."""

    def __init__(self) -> None:
        self._order: list[Ending] = []
        self._reached: set[int] = set()
        self._task = self._outermost = _NONE  # the graph task seen last, and the one whose end is awaited
        self._handles: list[Any] = []

    def add(self, model: Ending) -> None:
        self._order.append(model)

    def remove(self, model: Ending) -> None:
        self._order = [kept for kept in self._order if kept is not model]
        self._reached.discard(id(model))

    def reach(self, model: Ending) -> None:
        """Register that a gradient of this model is complete. Called in every hook."""
        task = _graph_task()
        if task != self._task:
            self._task = task
            self._enter(task)
        self._reached.add(id(model))

    def end_for(self, model: Ending) -> None:
        """Exchange for a model that no backward of this rank has reached, because other ranks may have gradients."""
        self._reached = {id(model)}
        self._end()

    def _enter(self, task: int) -> None:
        if task == self._outermost:  # an inner backward has ended
            return
        around = _node_around()
        if around is not None:
            self._wait_for(around)
            return
        if self._reached and not self._handles:
            self._reached.clear()
            raise WorkloadError(
                "backward ran again after one that failed",
                why="gradients of the failed one have left, and other ranks wait for the rest",
                remedy="end the job after an error in backward",
            )
        self._await_end()

    def _await_end(self) -> None:
        self._outermost = _graph_task()
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _wait_for(self, node: Any) -> None:
        """Arrange that the callback is queued when the outer backward continues after `node`."""
        if self._outermost == _NONE and not self._handles:
            following = [function for function, _ in node.next_functions if function is not None]
            self._handles = [function.register_prehook(self._went_on) for function in following]

    def _went_on(self, gradients: Any) -> None:
        if self._outermost == _NONE:
            self._await_end()

    def _end(self) -> None:
        self._task = self._outermost = _NONE
        for handle in self._handles:
            handle.remove()
        self._handles = []
        reached, self._reached = self._reached, set()
        marks = [id(model) in reached for model in self._order]
        if len(marks) > 1:
            marks = self._order[0].any_rank(marks)
        for model, mark in zip(self._order, marks, strict=True):
            if mark:
                model.end_backward()


def _node_around() -> Any:
    """Return the node of the outermost backward if this one was called from a node, else None.

    Autograd does not provide this. But a backward in Python is called by `apply` of its node, which is on the stack.
    """
    inner, node, frame = False, None, sys._getframe(1)
    while frame is not None:
        if frame.f_code is _RUN:
            inner = True
        elif inner and frame.f_code is _APPLY:
            node = frame.f_locals["self"]
        frame = frame.f_back  # type: ignore[assignment]
    return node


_RUN = torch.autograd.graph._engine_run_backward.__code__
_APPLY = torch.autograd.function.BackwardCFunction.apply.__code__
