"""Set p.grad as training loops expect it: to the mean gradient, in memory that only this rank writes.

    a result of this rank alone (gloo, a compressor)     p.grad is a view of it
    a result that the ranks of a host share (shm)        p.grad is a view of a private mapping: a write copies a page
    after the first write, or without such a mapping     p.grad is a view of a copy

Gradients are valid until zero_grad or the next backward. A backward adds to gradients that are still there, as in
torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter

    from paceline.strategy.rules._lane import LaneArena


class Handover:
    """Sets p.grad for the parameters of some arenas, in the order of their slots.

    `holds_means` is whether p.grad holds means that were exchanged.
    """

    def __init__(self, arenas: Sequence[LaneArena], copying: bool) -> None:
        self._arenas, self._copying, self.holds_means = arenas, copying, False
        self._gave = False  # some rank had a gradient in the last exchange
        self._bases: dict[int, Tensor] = {}
        self._parameters: Sequence[Parameter] = ()

    @property
    def copying(self) -> bool:
        """Return whether p.grad is a copy of the result; without a private mapping of shared memory it always is."""
        return self._copying or any(arena.shared and arena.private is None for arena in self._arenas)

    def number(self, parameters: Sequence[Parameter]) -> None:
        """Take the parameters in the order of the slots, which has changed."""
        self._parameters = parameters
        self._copies: list[Tensor] = []
        self._copy_views: list[Tensor] = []

    def set_aside(self) -> None:
        """Take the means of earlier backwards out of p.grad."""
        if not self.holds_means:
            return
        self.holds_means = False
        for slot, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                self._bases[slot] = self._in_own_memory(parameter.grad.detach())
                parameter.grad = None
        self._copying = self._copying or bool(self._bases)

    def give(self, moved: Sequence[bool]) -> None:
        """Set p.grad to the mean plus the gradient that was set aside. It stays None if no rank had a gradient."""
        self._drop_writes()
        views = self._views()
        for parameter, view, moves in zip(self._parameters, views, moved, strict=True):
            parameter.grad = view if moves else None
        for slot, base in self._bases.items():
            if moved[slot]:
                base.add_(self._result(slot))
            self._parameters[slot].grad = base
        self._gave = any(moved) or bool(self._bases)
        self._bases, self.holds_means = {}, True

    @property
    def discarded(self) -> bool:
        """Return whether zero_grad has removed all gradients that give() has set."""
        return self._gave and all(parameter.grad is None for parameter in self._parameters)

    def some(self, slots: Sequence[int]) -> list[Tensor]:
        """Return the means of some slots as tensors that an optimizer may write."""
        if self.copying:
            return [self._result(slot).clone() for slot in slots]
        views = self._private_views()
        return [views[slot] for slot in slots]

    def keep(self) -> None:
        """Copy gradients that may still be read out of result memory that is about to be overwritten."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad = self._in_own_memory(parameter.grad)

    def release(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        self._bases, self.holds_means = {}, False

    def drop_writes(self) -> None:
        """Discard what an optimizer wrote over the results; from then on p.grad is a copy."""
        self._drop_writes()

    def _drop_writes(self) -> None:
        if self.copying:
            return
        for arena in self._arenas:
            if arena.private is not None and arena.private.written():
                arena.private.drop()
                self._copying = True

    def _views(self) -> Sequence[Tensor]:
        """Return p.grad for every slot.

        For a slot with a gradient from earlier backwards, it is a view that is filled later.
        """
        if not self.copying:
            return self._private_views()
        import torch

        if not self._copies:
            self._copies = [torch.empty_like(arena.result) for arena in self._arenas]
            pairs = zip(self._copies, self._arenas, strict=True)
            self._copy_views = [view for copy, arena in pairs for view in arena.views(copy)]
        if not self._bases:
            for copy, arena in zip(self._copies, self._arenas, strict=True):
                copy.copy_(arena.result)
        else:  # a gradient of earlier backwards may be in the copies
            for slot, view in enumerate(self._copy_views):
                if slot not in self._bases:
                    view.copy_(self._result(slot))
        return self._copy_views

    def _private_views(self) -> Sequence[Tensor]:
        if len(self._arenas) == 1:
            return self._arenas[0].private_views
        return [view for arena in self._arenas for view in arena.private_views]

    def _result(self, slot: int) -> Tensor:
        for arena in self._arenas:
            if slot < len(arena.result_views):
                return arena.result_views[slot]
            slot -= len(arena.result_views)
        raise IndexError(slot)

    def _in_own_memory(self, gradient: Tensor) -> Tensor:
        """Return the gradient, as a copy if the next exchange would overwrite it."""
        first = gradient.data_ptr()
        for arena in self._arenas:
            for vector in (arena.result, *([] if arena.private is None else [arena.private.vector])):
                if vector.data_ptr() <= first < vector.data_ptr() + vector.nbytes:
                    return gradient.clone()
        return gradient
