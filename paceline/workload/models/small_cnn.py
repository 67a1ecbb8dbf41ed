"""Three convolutions and a linear layer: no normalization, no dropout, seconds to train on one core."""

from __future__ import annotations

from torch import nn

from paceline.errors import BadMember
from paceline.types import Workload
from paceline.workload.models._images import check_image, classifier
from paceline.workload.models._layers import initialize


def small_cnn(*, classes: int = 10, image_size: int = 32, width: int = 32, channels: int = 3) -> Workload:
    check_image("small_cnn", image_size=image_size, classes=classes, smallest=4, channels=channels)
    if width < 1:
        raise BadMember(f"small_cnn(width={width})", why="width is at least 1")
    model = nn.Sequential(
        *_stage(channels, width),
        nn.MaxPool2d(2),
        *_stage(width, 2 * width),
        nn.MaxPool2d(2),
        *_stage(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(4 * 4 * 4 * width, classes),
    )
    initialize(model)
    return classifier(model, classes=classes, image_size=image_size, channels=channels)


def _stage(inputs: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)
