"""Plain stacks of 3 x 3 convolutions (Simonyan and Zisserman 2015, arXiv 1409.1556), without normalization.

Three linear layers hold nine tenths of the parameters, which makes these networks expensive to exchange. The
average pooling to 7 x 7 before them accepts images of any size from 32 pixels.
"""

from __future__ import annotations

from torch import nn

from paceline.types import Workload
from paceline.workload.models._images import check_image, classifier
from paceline.workload.models._layers import initialize

_WIDTHS = (64, 128, 256, 512, 512)


def vgg16(*, classes: int = 1000, image_size: int = 224, dropout: float = 0.5) -> Workload:
    return _workload("vgg16", (2, 2, 3, 3, 3), classes, image_size, dropout)


def vgg19(*, classes: int = 1000, image_size: int = 224, dropout: float = 0.5) -> Workload:
    return _workload("vgg19", (2, 2, 4, 4, 4), classes, image_size, dropout)


def _workload(word: str, depths: tuple[int, ...], classes: int, image_size: int, dropout: float) -> Workload:
    check_image(word, image_size=image_size, classes=classes, smallest=32)
    model = nn.Sequential()
    model.add_module("features", _features(depths))
    model.add_module("avgpool", nn.AdaptiveAvgPool2d(7))
    model.add_module("flatten", nn.Flatten())
    model.add_module("classifier", _classifier(classes, dropout))
    initialize(model, linear_std=0.01)
    return classifier(model, classes=classes, image_size=image_size)


def _features(depths: tuple[int, ...]) -> nn.Sequential:
    steps: list[nn.Module] = []
    inputs = 3
    for width, depth in zip(_WIDTHS, depths, strict=True):
        for _ in range(depth):
            steps += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = width
        steps.append(nn.MaxPool2d(2))
    return nn.Sequential(*steps)


def _classifier(classes: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(4096, classes),
    )
