"""Inverted residuals with linear bottlenecks (Sandler et al. 2018, arXiv 1801.04381).

    x -> 1x1 widen -> relu6 -> 3x3 per channel -> relu6 -> 1x1 narrow -> (+ x where shapes allow)

Many small tensors and little compute: a network whose exchange is hard to hide.
"""

from __future__ import annotations

from torch import Tensor, nn

from paceline.types import Workload
from paceline.workload.models._images import check_image, classifier
from paceline.workload.models._layers import initialize

# Table 2 of the paper: expansion, output channels, repeats, stride of the first.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(*, classes: int = 1000, image_size: int = 224, dropout: float = 0.2) -> Workload:
    check_image("mobilenet_v2", image_size=image_size, classes=classes)
    model = nn.Sequential(
        *_convolution(3, 32, 3, stride=2),
        *_blocks(),
        *_convolution(320, 1280, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(1280, classes),
    )
    initialize(model, linear_std=0.01)
    return classifier(model, classes=classes, image_size=image_size)


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        widen = _convolution(inputs, hidden, 1) if expansion > 1 else ()
        self.body = nn.Sequential(
            *widen,
            *_convolution(hidden, hidden, 3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def _blocks() -> list[InvertedResidual]:
    blocks, inputs = [], 32
    for expansion, outputs, repeats, stride in _STAGES:
        for index in range(repeats):
            blocks.append(InvertedResidual(inputs, outputs, expansion, stride if index == 0 else 1))
            inputs = outputs
    return blocks


def _convolution(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True)
