"""FLOPs of a training step and peak FLOPs of this worker, whose ratio is the model FLOPs utilization."""

from __future__ import annotations

import time
from typing import Any

import torch

from paceline.train.evaluate import in_eval

BACKWARD = 2  # a backward pass costs twice its forward pass
SIDE = 768  # rows of the square matrices: large enough for full speed, small enough for a cache


def training_flops(model: Any, loss: Any, batch: Any, samples: int) -> int | None:
    """Return the FLOPs of forward and backward per sample, counted on one batch, or None if counting fails.

    The first call in a process takes more than a second, because torch loads its compiler for it.
    """
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), in_eval(model), counter:
            loss(model, batch)
    except Exception:  # a user's network may fail in any way under the counter; that must not end the run
        return None
    return (1 + BACKWARD) * int(counter.get_total_flops()) // samples or None


def peak_flops(seconds: float = 0.1) -> float:
    """Return the best FLOPs per second of some fp32 matrix products on the CPU, with this process's threads."""
    left, right = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    out = torch.empty(SIDE, SIDE)
    best, limit = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < limit:
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        best = min(best, time.perf_counter() - began)
    return 2 * SIDE**3 / best
