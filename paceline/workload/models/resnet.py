"""Residual networks (He et al. 2016, arXiv 1512.03385), with the stride in the 3 x 3 convolution.

    x --> conv .. conv --> + --> relu
      \\------ shortcut --/

Parameter names are those of torchvision's checkpoints. `bias` gives every convolution a bias, as the
Keras networks of some published benchmarks have.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.types import Workload
from paceline.workload.models._images import check_image, classifier
from paceline.workload.models._layers import initialize


def resnet18(*, classes: int = 1000, image_size: int = 224, bias: bool = False) -> Workload:
    return _workload("resnet18", Basic, (2, 2, 2, 2), classes, image_size, bias)


def resnet34(*, classes: int = 1000, image_size: int = 224, bias: bool = False) -> Workload:
    return _workload("resnet34", Basic, (3, 4, 6, 3), classes, image_size, bias)


def resnet50(*, classes: int = 1000, image_size: int = 224, bias: bool = False) -> Workload:
    return _workload("resnet50", Bottleneck, (3, 4, 6, 3), classes, image_size, bias)


def resnet101(*, classes: int = 1000, image_size: int = 224, bias: bool = False) -> Workload:
    return _workload("resnet101", Bottleneck, (3, 4, 23, 3), classes, image_size, bias)


def resnet152(*, classes: int = 1000, image_size: int = 224, bias: bool = False) -> Workload:
    return _workload("resnet152", Bottleneck, (3, 8, 36, 3), classes, image_size, bias)


class Basic(nn.Module):
    """Two 3 x 3 convolutions."""

    widening = 1

    def __init__(self, inputs: int, width: int, stride: int, bias: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=bias)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=bias)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride, bias)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.downsample(x), inplace=True)


class Bottleneck(nn.Module):
    """A 1 x 1 convolution that narrows, a 3 x 3 convolution, and a 1 x 1 convolution that widens again."""

    widening = 4

    def __init__(self, inputs: int, width: int, stride: int, bias: bool) -> None:
        super().__init__()
        outputs = width * self.widening
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=bias)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=bias)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=bias)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride, bias)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        return F.relu(y + self.downsample(x), inplace=True)


class ResNet(nn.Module):
    """A stem, four stages of blocks, an average over the image, a linear layer."""

    def __init__(self, block: type[Basic | Bottleneck], depths: tuple[int, ...], classes: int, bias: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=bias)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for index, depth in enumerate(depths):
            width, stride = 64 << index, 1 if index == 0 else 2
            self.add_module(f"layer{index + 1}", _stage(block, inputs, width, stride, depth, bias))
            inputs = width * block.widening
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for index in range(4):
            x = self.get_submodule(f"layer{index + 1}")(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def _workload(
    word: str,
    block: type[Basic | Bottleneck],
    depths: tuple[int, ...],
    classes: int,
    image_size: int,
    bias: bool,
) -> Workload:
    check_image(word, image_size=image_size, classes=classes)
    model = ResNet(block, depths, classes, bias)
    initialize(model)
    return classifier(model, classes=classes, image_size=image_size)


def _stage(
    block: type[Basic | Bottleneck], inputs: int, width: int, stride: int, depth: int, bias: bool
) -> nn.Sequential:
    first = block(inputs, width, stride, bias)
    rest = [block(width * block.widening, width, 1, bias) for _ in range(depth - 1)]
    return nn.Sequential(first, *rest)


def _shortcut(inputs: int, outputs: int, stride: int, bias: bool) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=bias), nn.BatchNorm2d(outputs))
