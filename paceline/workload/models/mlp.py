"""Fully connected layers over the pixels: no normalization, no dropout.

    pixels -> (linear -> relu) x layers -> linear

Its loss over a batch is exactly the mean of the losses over equal shares, which tests rely on.
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from paceline.errors import BadMember
from paceline.types import Workload
from paceline.workload.models._images import check_image, classifier


def mlp(*, classes: int = 10, image_size: int = 28, hidden: int = 256, layers: int = 2, channels: int = 3) -> Workload:
    check_image("mlp", image_size=image_size, classes=classes, channels=channels)
    if hidden < 1 or layers < 0:
        raise BadMember(f"mlp(hidden={hidden}, layers={layers})", why="hidden is at least 1, layers at least 0")
    widths = [channels * image_size * image_size, *[hidden] * layers]
    steps: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        steps += [nn.Linear(inputs, outputs), nn.ReLU()]
    steps.append(nn.Linear(widths[-1], classes))
    return classifier(nn.Sequential(*steps), classes=classes, image_size=image_size, channels=channels)
