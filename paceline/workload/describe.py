"""Count a model's parameters and flops without computing, with shapes on the meta device."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from paceline.types import Workload
from paceline.workload.layouts import read

if TYPE_CHECKING:
    from torch import nn

_SAMPLES = 2  # normalization in training mode needs more than one sample


@dataclass(frozen=True, slots=True)
class Description:
    """The trainable parameters of a model, each shared tensor counted once, and the cost of one sample.

    flops_per_sample is the cost of the forward pass with its loss; a multiply-add counts as two.
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
    """Return every listed model from layouts.json, without importing torch or other packages of the models."""
    return [_listed(text, entry) for text, entry in read().items()]


def _listed(text: str, entry: Any) -> Description:
    numel = sum(prod(shape) for _, shape in entry["tensors"])
    return Description(text, entry["unit"], numel, len(entry["tensors"]), 4 * numel, entry["flops"])


def _flops(workload: Workload) -> int:
    import torch

    batch = workload.batch(torch.arange(_SAMPLES))
    on_meta = _moved(batch, "meta")
    try:
        # evaluation mode has the same flops, and its normalization is twice as fast on the meta device
        return _counted(workload, _shadow(workload.model).eval(), on_meta)
    except (NotImplementedError, RuntimeError):
        if any(tensor.is_meta for tensor in workload.model.parameters()):
            raise
        # a user's network may read values, which the meta device does not have, so compute them
        return _counted(workload, copy.deepcopy(workload.model), batch)


def _counted(workload: Workload, model: nn.Module, batch: Any) -> int:
    return int(_counter(workload, model, batch).get_total_flops()) // _SAMPLES


def _counter(workload: Workload, model: nn.Module, batch: Any) -> Any:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), counter:
        workload.loss(model, batch)
    return counter


def flops_by_tensor(workload: Workload) -> tuple[int, list[int]]:
    """Return the FLOPs of one sample, in total and by tensor.

    The FLOPs of a layer are assigned to its largest tensor.
    """
    import torch

    model = _shadow(workload.model).eval()
    counter = _counter(workload, model, _moved(workload.batch(torch.arange(_SAMPLES)), "meta"))
    counts, total = counter.get_flop_counts(), counter.get_total_flops() // _SAMPLES
    root = type(model).__name__
    layers = {name.removeprefix(root).lstrip("."): sum(operations.values()) for name, operations in counts.items()}
    named = [(name, tensor.numel()) for name, tensor in model.named_parameters() if tensor.requires_grad]
    largest: dict[str, tuple[int, str]] = {}
    for name, numel in named:
        owner = name.rpartition(".")[0]
        largest[owner] = max(largest.get(owner, (0, "")), (numel, name))
    owners = [name.rpartition(".")[0] for name, _ in named]
    parts = [
        layers.get(owner, 0) // _SAMPLES if largest[owner][1] == name else 0
        for owner, (name, _) in zip(owners, named, strict=True)
    ]
    return int(total), parts


def _shadow(model: nn.Module) -> nn.Module:
    """Return a copy of the model on the meta device, so that no memory is copied."""
    from torch import nn

    shapes: dict[int, Any] = {}
    for tensor in model.parameters():
        shapes[id(tensor)] = nn.Parameter(tensor.detach().to("meta"), tensor.requires_grad)
    for buffer in model.buffers():
        shapes[id(buffer)] = buffer.to("meta")
    return copy.deepcopy(model, shapes)


def _moved(batch: Any, device: str) -> Any:
    """Move a batch to another device: tensors in tuples, lists and mappings."""
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
    """Describe the models that the texts name, built on the meta device."""
    import torch

    from paceline.workload.resolve import build

    descriptions = []
    for text in texts:
        with torch.device("meta"):
            workload = build(text, classes=classes, image_size=image_size, sequence_length=sequence_length)
        descriptions.append(describe(workload, text))
    return descriptions
