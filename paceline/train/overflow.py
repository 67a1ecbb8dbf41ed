"""Support for torch's GradScaler if gradients differ among ranks: all ranks agree whether to skip a step.

With rule grad all ranks see the same mean, so GradScaler makes the same decision everywhere. With other rules we
announce that the optimizer handles scales itself, as fused optimizers do. GradScaler then always calls step(), and
sets two attributes:

    found_inf    whether gradients of this rank overflowed
    grad_scale   the scale to divide gradients by, or None if the loop has already divided them
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from paceline.errors import WrongCommand


def take_part(optimizer: Any) -> None:
    """Make GradScaler call step() on every rank, even if gradients of this rank overflowed."""
    optimizer._step_supports_amp_scaling = True


def overflowed(holders: list[Any], agree: Callable[[list[bool]], list[bool]] | None) -> bool:
    """Return whether gradients overflowed on any rank. If not, divide them by the scale. Collective with GradScaler."""
    holder = next((holder for holder in holders if getattr(holder, "found_inf", None) is not None), None)
    if holder is None:
        return False
    if agree is None:
        raise WrongCommand(
            "GradScaler with an exchange whose ranks do not wait for each other",
            why="ranks must agree on an overflow before anyone skips a step",
            remedy="bf16, or an exchange that waits: allreduce, neighbor",
        )
    any_overflow = agree([bool(holder.found_inf)])[0]
    holder.found_inf = None  # handled here; an optimizer that is not fused does not expect it
    if any_overflow:
        return True
    if holder.grad_scale is not None:
        groups = holder.param_groups
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        torch._foreach_mul_(gradients, 1.0 / float(holder.grad_scale))
        holder.grad_scale = None  # a fused optimizer would divide again
    return False
