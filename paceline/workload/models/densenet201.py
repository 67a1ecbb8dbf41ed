"""Every layer sees all layers before it in its block (Huang et al. 2017, arXiv 1608.06993).

    x0 -> layer([x0]) = x1 -> layer([x0, x1]) = x2 -> ...     each adds 32 channels

It has 604 small tensors, so latency dominates if tensors are sent one by one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.types import Workload
from paceline.workload.models._images import check_image, classifier
from paceline.workload.models._layers import initialize

_GROWTH = 32
_BOTTLENECK = 4 * _GROWTH
_DEPTHS = (6, 12, 48, 32)


def densenet201(*, classes: int = 1000, image_size: int = 224) -> Workload:
    check_image("densenet201", image_size=image_size, classes=classes, smallest=32)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        *_normalized(64),
        nn.MaxPool2d(3, stride=2, padding=1),
        *_blocks(64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1920, classes),
    )
    initialize(model)
    return classifier(model, classes=classes, image_size=image_size)


class DenseLayer(nn.Module):
    """Normalization, 1 x 1 convolution, normalization, 3 x 3 convolution; the result is appended to the input."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, _BOTTLENECK, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(_BOTTLENECK)
        self.conv2 = nn.Conv2d(_BOTTLENECK, _GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x), inplace=True))
        y = self.conv2(F.relu(self.norm2(y), inplace=True))
        return torch.cat((x, y), dim=1)


def _blocks(channels: int) -> list[nn.Module]:
    """Return dense blocks, and between them transitions that halve channels and image size."""
    steps: list[nn.Module] = []
    for index, depth in enumerate(_DEPTHS):
        steps += [DenseLayer(channels + _GROWTH * k) for k in range(depth)]
        channels += _GROWTH * depth
        steps += _normalized(channels)
        if index < len(_DEPTHS) - 1:
            steps += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    return steps


def _normalized(channels: int) -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
