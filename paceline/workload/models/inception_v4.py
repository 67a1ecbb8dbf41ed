"""Inception-v4 (Szegedy et al. 2017, arXiv 1602.07261), figures 3 to 9 of the paper.

    stem -> A x 4 -> reduction A -> B x 7 -> reduction B -> C x 3 -> average -> linear

Each letter is a cell: several branches with the same input, whose output channels are concatenated.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn

from paceline.types import Workload
from paceline.workload.models._images import check_image, classifier
from paceline.workload.models._layers import initialize

Kernel: TypeAlias = "int | tuple[int, int]"
_ROW, _COLUMN = (1, 7), (7, 1)
_SHORT_ROW, _SHORT_COLUMN = (1, 3), (3, 1)


def inception_v4(*, classes: int = 1000, image_size: int = 299, dropout: float = 0.2) -> Workload:
    check_image("inception_v4", image_size=image_size, classes=classes, smallest=75)
    model = nn.Sequential(
        *_stem(),
        *(_cell_a() for _ in range(4)),
        _reduction_a(),
        *(_cell_b() for _ in range(7)),
        _reduction_b(),
        *(_cell_c() for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(1536, classes),
    )
    initialize(model)
    return classifier(model, classes=classes, image_size=image_size)


class Branches(nn.Module):
    """Run each branch on the same input and concatenate their channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def _stem() -> list[nn.Module]:
    """Figure 3: 299 x 299 x 3 to 35 x 35 x 384."""
    return [
        _conv(3, 32, 3, stride=2, same=False),
        _conv(32, 32, 3, same=False),
        _conv(32, 64, 3),
        Branches(_shrink(), _conv(64, 96, 3, stride=2, same=False)),
        Branches(
            nn.Sequential(_conv(160, 64, 1), _conv(64, 96, 3, same=False)),
            nn.Sequential(_chain(160, (64, 1), (64, _ROW), (64, _COLUMN)), _conv(64, 96, 3, same=False)),
        ),
        Branches(_conv(192, 192, 3, stride=2, same=False), _shrink()),
    ]


def _cell_a() -> nn.Module:
    """Figure 4, at 35 x 35 x 384."""
    return Branches(
        _conv(384, 96, 1),
        _chain(384, (64, 1), (96, 3)),
        _chain(384, (64, 1), (96, 3), (96, 3)),
        nn.Sequential(_blur(), _conv(384, 96, 1)),
    )


def _reduction_a() -> nn.Module:
    """Figure 7, to 17 x 17 x 1024."""
    return Branches(
        _conv(384, 384, 3, stride=2, same=False),
        nn.Sequential(_chain(384, (192, 1), (224, 3)), _conv(224, 256, 3, stride=2, same=False)),
        _shrink(),
    )


def _cell_b() -> nn.Module:
    """Figure 5, at 17 x 17 x 1024."""
    return Branches(
        _conv(1024, 384, 1),
        _chain(1024, (192, 1), (224, _ROW), (256, _COLUMN)),
        _chain(1024, (192, 1), (192, _COLUMN), (224, _ROW), (224, _COLUMN), (256, _ROW)),
        nn.Sequential(_blur(), _conv(1024, 128, 1)),
    )


def _reduction_b() -> nn.Module:
    """Figure 8, to 8 x 8 x 1536."""
    return Branches(
        nn.Sequential(_conv(1024, 192, 1), _conv(192, 192, 3, stride=2, same=False)),
        nn.Sequential(_chain(1024, (256, 1), (256, _ROW), (320, _COLUMN)), _conv(320, 320, 3, stride=2, same=False)),
        _shrink(),
    )


def _cell_c() -> nn.Module:
    """Figure 6, at 8 x 8 x 1536."""
    return Branches(
        _conv(1536, 256, 1),
        nn.Sequential(_conv(1536, 384, 1), _fork(384)),
        nn.Sequential(_chain(1536, (384, 1), (448, _SHORT_COLUMN), (512, _SHORT_ROW)), _fork(512)),
        nn.Sequential(_blur(), _conv(1536, 256, 1)),
    )


def _fork(inputs: int) -> nn.Module:
    return Branches(_conv(inputs, 256, _SHORT_ROW), _conv(inputs, 256, _SHORT_COLUMN))


def _chain(inputs: int, *steps: tuple[int, Kernel]) -> nn.Sequential:
    """Return a sequence of convolutions that keep the image size, each described by (channels, kernel)."""
    layers = []
    for outputs, kernel in steps:
        layers.append(_conv(inputs, outputs, kernel))
        inputs = outputs
    return nn.Sequential(*layers)


def _conv(inputs: int, outputs: int, kernel: Kernel, *, stride: int = 1, same: bool = True) -> nn.Sequential:
    """Convolution, normalization, relu; `same` pads so that the image keeps its size."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (height // 2, width // 2) if same else (0, 0)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, (height, width), stride, padding, bias=False),
        nn.BatchNorm2d(outputs, eps=1e-3),
        nn.ReLU(inplace=True),
    )


def _shrink() -> nn.Module:
    return nn.MaxPool2d(3, stride=2)


def _blur() -> nn.Module:
    return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
