"""Raise errors for mistakes in a user's loop that would silently make ranks diverge."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from paceline.errors import WorkloadError, WrongCommand
from paceline.train.scaling import LossScale


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the named parameters that require gradients, last one first, which is about the order of backward."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise WorkloadError(f"{type(model).__name__} has nothing to train", why="no parameter requires gradients")
    return named[::-1]


def check_known(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise if the optimizer has parameters that the model does not have, because they would not be exchanged."""
    known = {id(parameter) for parameter in model.parameters()}
    strange = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
    if strange:
        shapes = ", ".join(str(tuple(p.shape)) for p in strange[:3])
        raise WrongCommand(
            f"{type(optimizer).__name__} has parameters that {type(model).__name__} has not, of shape {shapes}",
            why="only the model is exchanged, so they would differ among ranks",
            remedy="make them parameters of the model, or wrap a module that holds both",
        )


def check_added(names: Sequence[str]) -> None:
    """Raise if parameters were added after wrap, because they are not exchanged."""
    if names:
        raise WorkloadError(
            f"{names[0]} is new in the model since wrap",
            why=f"{len(names)} such parameters would be updated on each rank with its own gradient",
            remedy="close() the result of wrap, and wrap again at the same step on all ranks",
        )


def check_thawed(names: Sequence[str]) -> None:
    """Raise if parameters that were frozen at wrap require gradients now, because they are not exchanged."""
    if names:
        raise WorkloadError(
            f"{names[0]} requires gradients now, and was frozen at wrap",
            why=f"{len(names)} such parameters would be updated on each rank with its own gradient",
            remedy="wrap first and freeze afterwards; then they may be unfrozen at any time",
        )


def check_not_compiled(model: nn.Module) -> None:
    """Raise if a part of the model is compiled, because compiled code skips the hooks that wait for updates."""
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise WrongCommand(
                f"a schedule that crosses the step with {name or type(model).__name__}, which torch.compile has made",
                why="updates arrive while the next forward runs, and compiled code does not wait for them",
                remedy="--schedule fusion, or a model that is not compiled",
            )


def evaluates_once(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer calls a closure exactly once, as all of torch's optimizers except LBFGS do."""
    kind = type(optimizer)
    return kind.__module__.startswith("torch.optim") and kind.__name__ != "LBFGS"


def check_closure(accumulate: int, loss_scale: LossScale | None) -> None:
    if accumulate > 1 or loss_scale is not None:
        raise WrongCommand(
            "step(closure) with accumulate or loss_scale",
            why="the optimizer decides how often the closure runs",
            remedy="wrap(...) without them",
        )
