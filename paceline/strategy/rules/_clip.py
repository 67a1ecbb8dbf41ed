"""Scale gradients down to a global norm, as torch.nn.utils.clip_grad_norm_ does, in the precision of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def clip(parameters: Sequence[Tensor], largest: float, in_place: bool) -> None:
    """Clip p.grad. Without `in_place`, a clipped gradient is a new tensor, and the old tensor stays unchanged."""
    import torch

    moved = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in moved if parameter.grad is not None]
    if not gradients:
        return
    norm = torch.nn.utils.get_total_norm(gradients)
    if in_place:
        torch.nn.utils.clip_grads_with_norm_(moved, largest, norm)
        return
    factor = largest / (norm + 1e-6)
    if float(factor) < 1:
        for parameter, gradient in zip(moved, gradients, strict=True):
            parameter.grad = gradient * factor.to(gradient.device)
