"""A network of your own: a function that returns a Workload.

    paceline run -np 2 --model examples.my_workload:sines
    paceline run -np 2 --model "examples.my_workload:sines(hidden=64)"

A function that returns a bare torch Module works too: it gets synthetic images and cross-entropy. Settings
are keyword arguments with annotations; --classes, --image-size and --sequence-length reach those of the same
name.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline import Workload


def sines(*, hidden: int = 32, points: int = 16) -> Workload:
    """Learn the frequency of a sine from some points on it."""
    model = nn.Sequential(nn.Linear(points, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def batch(ids: Tensor) -> tuple[Tensor, Tensor]:
        """Made from the ids alone, so that every number of workers sees the same samples."""
        frequency = 1 + (ids * 37 % 101).float().unsqueeze(1) / 101
        return torch.sin(frequency * torch.linspace(0, 6, points)), frequency

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The mean over the batch; workers average their gradients."""
        inputs, frequency = batch
        return F.mse_loss(model(inputs), frequency)

    return Workload(model, loss, batch, unit="sine")
