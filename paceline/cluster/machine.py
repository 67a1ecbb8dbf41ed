"""The resources of this host that matter for whether a run can start. Imports no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """The resources of a machine that matter for whether a run can start."""

    gpus: int = 0


def machine() -> Machine:
    """Return the resources of this host. There are no GPUs if CUDA_VISIBLE_DEVICES is empty or -1."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return Machine()
    return Machine(gpus=len(list(Path("/dev").glob("nvidia[0-9]*"))))
