"""Add the same range of several ranks' vectors, in rank order, for any dtype.

Half-precision numbers are added in float32 and rounded once. Unsigned integers, which torch cannot add, are added
as signed integers of the same width, which gives the same bits. Booleans are combined with "or".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

# Half a megabyte of float32: the running sum of more than two ranks stays in the second-level cache.
BLOCK = 1 << 17

# Gloo and NCCL know these; other numbers are copied as bytes.
_FRACTIONS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_KNOWN = (*_FRACTIONS, torch.int8, torch.uint8, torch.int32, torch.int64)
_AS_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to add in: float32 for half precision and below, otherwise the dtype itself."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def copyable(dense: Tensor) -> Tensor:
    """Return the same memory as numbers that gloo and NCCL can copy."""
    return dense if dense.dtype in _KNOWN else dense.view(-1).view(torch.uint8)


def sum_into(out: Tensor, parts: Sequence[Tensor]) -> None:
    """Compute out = parts[0] + parts[1] + ... All are flat vectors of one dtype and length."""
    if out.dtype in _AS_SIGNED:
        signed = _AS_SIGNED[out.dtype]
        return sum_into(out.view(signed), [part.view(signed) for part in parts])
    if len(parts) == 1:
        out.copy_(parts[0])
    elif wide(out.dtype) != out.dtype:
        _blocks(out, parts, _sum_rounded)
    elif out.dtype == torch.bool:
        _blocks(out, parts, _any)
    elif len(parts) == 2:
        torch.add(parts[0], parts[1], out=out)
    else:
        _blocks(out, parts, _sum)
    return None


def add_up(out: Tensor, parts: Sequence[Tensor], start: int) -> None:
    """Sum the ranges of several workers. This is the default `combine` of sum_by; it ignores `start`."""
    sum_into(out, parts)


def mix_into(out: Tensor, own: Tensor, keep: float, heard: Sequence[tuple[Tensor, float]]) -> None:
    """Compute out = keep * own + the weighted parts in `heard`. A single part of weight 1 is copied bit by bit."""
    if keep == 0 and len(heard) == 1 and heard[0][1] == 1:
        out.copy_(heard[0][0])
    elif keep == 1 and not heard:
        out.copy_(own)
    elif wide(out.dtype) != out.dtype:
        weights = [keep, *(weight for _, weight in heard)]
        _blocks(out, [own, *(part for part, _ in heard)], partial(_mix_rounded, weights=weights))
    else:
        torch.mul(own, keep, out=out)
        for part, weight in heard:
            out.add_(part, alpha=weight)


def _blocks(out: Tensor, parts: Sequence[Tensor], add) -> None:  # type: ignore[no-untyped-def]
    # Blocks that fit in a cache only help on CPUs.
    length = BLOCK if out.device.type == "cpu" else max(1, out.numel())
    for start in range(0, out.numel(), length):
        add(out[start : start + length], [part[start : start + length] for part in parts])


def _sum(out: Tensor, parts: Sequence[Tensor]) -> None:
    torch.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        out.add_(part)


def _sum_rounded(out: Tensor, parts: Sequence[Tensor]) -> None:
    total = parts[0].float()
    for part in parts[1:]:
        total.add_(part.float())
    out.copy_(total)


def _mix_rounded(out: Tensor, parts: Sequence[Tensor], weights: Sequence[float]) -> None:
    total = parts[0].float() * weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total.add_(part.float(), alpha=weight)
    out.copy_(total)


def _any(out: Tensor, parts: Sequence[Tensor]) -> None:
    torch.logical_or(parts[0], parts[1], out=out)
    for part in parts[2:]:
        torch.logical_or(out, part, out=out)
