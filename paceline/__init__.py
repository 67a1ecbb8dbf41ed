"""paceline: train one model on many workers with any strategy; race strategies; see how they scale.

Public names are loaded on first use, so that importing paceline loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from paceline._version import VERSION as __version__

if TYPE_CHECKING:
    from paceline.calls import (
        allgather,
        allreduce,
        broadcast,
        hierarchical_neighbor_allreduce,
        neighbor_allreduce,
    )
    from paceline.errors import PacelineError
    from paceline.hooks import comm_hook
    from paceline.joining import Worker, join, wrap
    from paceline.train.pace import Pace
    from paceline.types import Workload
    from paceline.windows import Window, window

_HOMES = {
    "join": "paceline.joining",
    "wrap": "paceline.joining",
    "Worker": "paceline.joining",
    "Pace": "paceline.train.pace",
    "Workload": "paceline.types",
    "PacelineError": "paceline.errors",
    "allreduce": "paceline.calls",
    "broadcast": "paceline.calls",
    "comm_hook": "paceline.hooks",
    "allgather": "paceline.calls",
    "neighbor_allreduce": "paceline.calls",
    "hierarchical_neighbor_allreduce": "paceline.calls",
    "window": "paceline.windows",
    "Window": "paceline.windows",
}

__all__ = [
    "Pace",
    "PacelineError",
    "Window",
    "Worker",
    "Workload",
    "__version__",
    "allgather",
    "allreduce",
    "broadcast",
    "comm_hook",
    "hierarchical_neighbor_allreduce",
    "join",
    "neighbor_allreduce",
    "window",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
