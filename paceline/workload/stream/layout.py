"""The layout of a batch that crosses between processes: dtype and shape of each tensor, checked before memory is used.

{"tensors": [{"dtype": "float32", "shape": [32, 3, 224, 224]}, {"dtype": "int64", "shape": [32]}]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from paceline.errors import WorkloadError

SIZES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "bool": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
}
TENSORS, DIMENSIONS = 64, 8  # most tensors of a batch, and most dimensions of a tensor
LARGEST = 1 << 30  # bytes of a batch
LONGEST = 1 << 16  # bytes of the text


class Field(NamedTuple):
    """One tensor of a batch."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return SIZES[self.dtype] * math.prod(self.shape)


def describe(batch: Any, what: str) -> tuple[Any, ...]:
    """Return the tensors of a batch, each contiguous. Raises if the batch is something else, or too large."""
    import torch

    parts = (batch,) if isinstance(batch, torch.Tensor) else batch
    if not isinstance(parts, (tuple, list)) or not parts or not all(isinstance(p, torch.Tensor) for p in parts):
        raise WorkloadError(what, why="its batches are not tuples of tensors", remedy="a source of tensors")
    if len(parts) > TENSORS or sum(part.nbytes for part in parts) > LARGEST:
        raise WorkloadError(what, why=f"a batch has more than {TENSORS} tensors or {LARGEST:,} bytes")
    return tuple(part.detach().contiguous() for part in parts)


def fields_of(tensors: Sequence[Any]) -> tuple[Field, ...]:
    return tuple(Field(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in tensors)


def write(fields: Sequence[Field]) -> bytes:
    return json.dumps({"tensors": [{"dtype": f.dtype, "shape": list(f.shape)} for f in fields]}).encode()


def read(text: bytes | memoryview) -> tuple[Field, ...]:
    """Return the fields of a layout. Raises ValueError with the reason if it is not valid."""
    if len(text) > LONGEST:
        raise ValueError(f"a header of {len(text):,} bytes")
    try:
        entries = json.loads(bytes(text))["tensors"]
        fields = tuple(Field(entry["dtype"], tuple(entry["shape"])) for entry in entries)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("a header that is no JSON with dtype and shape of each tensor") from None
    if not 1 <= len(fields) <= TENSORS:
        raise ValueError(f"{len(fields)} tensors")
    for field in fields:
        if not isinstance(field.dtype, str) or field.dtype not in SIZES:
            raise ValueError("a dtype that is not one of " + ", ".join(SIZES))
        sizes = all(type(size) is int and 0 <= size <= LARGEST for size in field.shape)
        if not sizes or len(field.shape) > DIMENSIONS:
            raise ValueError("a shape that cannot be")
    if sum(field.nbytes for field in fields) > LARGEST:
        raise ValueError(f"a batch of more than {LARGEST:,} bytes")
    return fields


def tensor_of(data: Any, field: Field) -> Any:
    """Return the bytes as a tensor, without copying them."""
    import torch

    if not field.nbytes:
        return torch.empty(field.shape, dtype=getattr(torch, field.dtype))
    flat = data if isinstance(data, torch.Tensor) else torch.frombuffer(data, dtype=torch.uint8)
    return flat.view(getattr(torch, field.dtype)).view(field.shape)
