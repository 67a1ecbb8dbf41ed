"""What a step costs in arithmetic, and what this worker could do at most: together, model FLOPs utilization."""

from __future__ import annotations

import time
from typing import Any

import torch

from paceline.train.evaluate import in_eval

BACKWARD = 2  # a backward pass costs twice its forward pass
SIDE = 768  # of the square matrices: large enough for full speed, small enough for a cache


def training_flops(model: Any, loss: Any, batch: Any, samples: int) -> int | None:
    """Of one sample, forward and backward, counted while one batch is computed; None where that cannot be done.

    The first count of a process takes more than a second, because torch loads its compiler for it.
    """
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), in_eval(model), counter:
            loss(model, batch)
    except Exception:  # a user's network may fail in any way off the training path; that must not end its run
        return None
    return (1 + BACKWARD) * int(counter.get_total_flops()) // samples or None


def peak_flops(seconds: float = 0.1) -> float:
    """FLOPs per second of a matrix product with this process's threads: the best of a few, in fp32 on the CPU."""
    left, right = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    out = torch.empty(SIDE, SIDE)
    best, limit = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < limit:
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        best = min(best, time.perf_counter() - began)
    return 2 * SIDE**3 / best
