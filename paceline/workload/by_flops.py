"""Profiles of listed models without a measurement: a step time, divided among layers by their FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from paceline.errors import WrongCommand
from paceline.types import Slot
from paceline.workload.layouts import flops_of, layout_of
from paceline.workload.profile import StepProfile, of_slots

BACKWARD = 2  # a backward pass costs twice its forward pass
SMALL = 0.02  # part of a pass that tensors without FLOPs of their own share: biases and normalization


def of_flops(model: str, step: float, batch: int) -> StepProfile:
    """Return a profile in which forward is a third of the step, and layers take time by their FLOPs.

    Layers without FLOPs share a small rest. Raises WrongCommand for a model that is not listed.
    """
    slots, flops = listed_slots(model), flops_of(model) or [0]
    total, plain = sum(flops), sum(1 for part in flops if not part)
    small = SMALL / plain if plain else 0.0
    parts = [part / total * (1 - SMALL if plain else 1.0) if part else small for part in flops]
    return _spread(model, slots, parts, step / (1 + BACKWARD), step * BACKWARD / (1 + BACKWARD), batch)


def _spread(
    model: str, slots: Sequence[Slot], parts: Sequence[float], forward: float, backward: float, batch: int
) -> StepProfile:
    """Return a profile in which layer k takes the share parts[k] of both passes. The last layer is the first slot."""
    begins = [0.0, *accumulate(parts)][:-1]
    ready = [backward * (1 - begin) for begin in begins]
    order = range(len(slots) - 1, -1, -1)
    return StepProfile(
        model=model,
        batch_size=batch,
        layout=of_slots([slots[k] for k in order]),
        forward=tuple(forward * begins[k] for k in order),
        forward_seconds=forward,
        ready=tuple(ready[k] for k in order),
        backward=backward,
        step=forward + backward,
    )


def listed_slots(model: str) -> list[Slot]:
    """Return the tensors of a listed model. Raises WrongCommand for another one."""
    slots = layout_of(model)
    if slots is None:
        raise WrongCommand(
            f"layer times of {model}",
            why="its tensors are not known without building it",
            remedy="--profile RECORD of this model; paceline models lists those that are known",
        )
    return slots
