"""Name the sample whose label is outside of the classes of the model, where torch names only the label."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from paceline.errors import WorkloadError

# of cross_entropy and of gather
_OUTSIDE = re.compile(r"(?:Target|index) (-?\d+) is out of bounds")


def blamed(problem: Exception, batch: Any, ids: Tensor | None, part: str) -> WorkloadError | None:
    """Return the error that names the sample, or None if the problem is another one.

    `ids` are those of the batch, or None if samples have no number; `part` is training or test.
    """
    match = _OUTSIDE.search(str(problem))
    if match is None:
        return None
    label = int(match[1])
    for labels in _labels(batch):
        for place in torch.nonzero(labels == label).flatten().tolist():
            known = ids is not None and place < len(ids)
            who = f"{part} sample {int(ids[place])}" if known and ids is not None else f"a {part} sample"
            return WorkloadError(
                f"{who} has the label {label}",
                why="the model has no such class; labels count from 0",
                remedy=f"--classes {label + 1} or more, or mend the sample" if label >= 0 else "mend the sample",
            )
    return None


def _labels(batch: Any) -> Iterator[Tensor]:
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    yield from (part for part in parts if isinstance(part, Tensor) and part.dim() == 1 and part.dtype == torch.int64)
