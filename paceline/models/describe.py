"""What a model weighs and costs, without computing anything: shapes flow through the meta device."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from paceline.models.layouts import read
from paceline.types import Workload

if TYPE_CHECKING:
    from torch import nn

_SAMPLES = 2  # where values are computed in training mode, normalization needs more than one


@dataclass(frozen=True, slots=True)
class Description:
    """Trainable parameters, counted once where tensors are shared, and the cost of one sample.

    flops_per_sample is of the forward pass with its loss; a multiply-add counts as two.
    """

    name: str
    unit: str
    parameters: int
    tensors: int
    bytes: int
    flops_per_sample: int


def describe(workload: Workload, name: str) -> Description:
    tensors = [tensor for tensor in workload.model.parameters() if tensor.requires_grad]
    return Description(
        name=name,
        unit=workload.unit,
        parameters=sum(tensor.numel() for tensor in tensors),
        tensors=len(tensors),
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        flops_per_sample=_flops(workload),
    )


def catalogue() -> list[Description]:
    """Every listed model, from layouts.json: at once, without torch or what the models need."""
    return [_listed(text, entry) for text, entry in read().items()]


def _listed(text: str, entry: Any) -> Description:
    numel = sum(prod(shape) for _, shape in entry["tensors"])
    return Description(text, entry["unit"], numel, len(entry["tensors"]), 4 * numel, entry["flops"])


def _flops(workload: Workload) -> int:
    import torch

    batch = workload.batch(torch.arange(_SAMPLES))
    on_meta = _moved(batch, "meta")
    try:
        # evaluation mode has the same flops, and normalization takes the meta device half the time
        return _counted(workload, _shadow(workload.model).eval(), on_meta)
    except (NotImplementedError, RuntimeError):
        if any(tensor.is_meta for tensor in workload.model.parameters()):
            raise
        # a user's network may look at values, which the meta device does not have: compute for real
        return _counted(workload, copy.deepcopy(workload.model), batch)


def _counted(workload: Workload, model: nn.Module, batch: Any) -> int:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), counter:
        workload.loss(model, batch)
    return counter.get_total_flops() // _SAMPLES


def _shadow(model: nn.Module) -> nn.Module:
    """A copy of the model whose tensors have shapes only, so that no memory is copied."""
    from torch import nn

    shapes: dict[int, Any] = {}
    for tensor in model.parameters():
        shapes[id(tensor)] = nn.Parameter(tensor.detach().to("meta"), tensor.requires_grad)
    for buffer in model.buffers():
        shapes[id(buffer)] = buffer.to("meta")
    return copy.deepcopy(model, shapes)


def _moved(batch: Any, device: str) -> Any:
    """A batch on another device: tensors in tuples, lists and mappings."""
    if isinstance(batch, (tuple, list)):
        return type(batch)(_moved(part, device) for part in batch)
    if isinstance(batch, Mapping):
        return {key: _moved(part, device) for key, part in batch.items()}
    return batch.to(device) if hasattr(batch, "to") else batch


def describe_texts(
    texts: Sequence[str],
    *,
    classes: int | None = None,
    image_size: int | None = None,
    sequence_length: int | None = None,
) -> list[Description]:
    """Some models with their settings, built without memory."""
    import torch

    from paceline.models.resolve import build

    found = []
    for text in texts:
        with torch.device("meta"):
            workload = build(text, classes=classes, image_size=image_size, sequence_length=sequence_length)
        found.append(describe(workload, text))
    return found
