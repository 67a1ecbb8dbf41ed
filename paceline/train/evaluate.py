"""BatchNorm statistics are local while training and averaged over ranks for evaluation and checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from paceline.protocols import Comm


def statistics(model: nn.Module) -> list[Tensor]:
    """Running means and variances, in an order that is the same on every rank."""
    return [
        buffer
        for module in model.modules()
        if isinstance(module, _NormBase)
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]


@contextlib.contextmanager
def averaged_statistics(model: nn.Module, comm: Comm) -> Iterator[None]:
    """Inside, every rank has the mean of all ranks' statistics; afterwards its own again."""
    buffers = statistics(model)
    kept = [buffer.clone() for buffer in buffers]
    if buffers:
        flat = torch.cat([buffer.reshape(-1) for buffer in buffers]) / comm.size
        total = torch.empty_like(flat)
        comm.all_sum(flat, total, "BatchNorm statistics").wait()
        for buffer, part in zip(buffers, total.split([b.numel() for b in buffers]), strict=True):
            buffer.copy_(part.view_as(buffer))
    try:
        yield
    finally:
        for buffer, own in zip(buffers, kept, strict=True):
            buffer.copy_(own)


def replicas(model: nn.Module, comm: Comm) -> dict[str, Any]:
    """Whether all ranks hold the same bits, and how far the farthest lies from the mean, relative to its norm."""
    flat = torch.cat([parameter.detach().reshape(-1).double() for parameter in model.parameters()])
    places = torch.arange(1, flat.numel() + 1)
    code = (flat.view(torch.int64) * places).sum().view(1)
    codes = torch.zeros(comm.size, dtype=torch.int64)
    comm.all_gather(code, codes, "checksums").wait()
    mean = torch.empty_like(flat)
    comm.all_sum(flat / comm.size, mean, "replicas").wait()
    apart = (flat - mean).norm() / mean.norm().clamp_min(1e-30)
    distances = torch.zeros(comm.size, dtype=torch.float64)
    comm.all_gather(apart.view(1), distances, "distances").wait()
    return {"identical": len(set(codes.tolist())) == 1, "distance": float(distances.max())}
