"""An autoencoder for images: convolutions narrow the picture, transposed convolutions widen it again.

    3 x 256 x 256 -> 512 x 16 x 16 -> 3 x 256 x 256        loss: mean squared error of the pixels

The benchmark that used such a network published its size only: 11,238,723 parameters in 34 tensors, images
of 256 pixels. The widths here were chosen so that seventeen layers of weight and bias have exactly that size.
"""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.errors import BadMember
from paceline.types import Workload
from paceline.workload.models._images import Images, check_image
from paceline.workload.models._layers import initialize

_ENCODER = (16, 128, 128, 256, 256, 256, 512, 512)
_DECODER = (512, 256, 256, 256, 256, 256, 64, 16)
_HALVES = (0, 1, 3, 6)  # encoder layers that halve the image
_DOUBLES = (1, 3, 5, 6)  # decoder layers that double it
_SMALLEST = 2 ** len(_HALVES)


def image_compression(*, image_size: int = 256) -> Workload:
    check_image("image_compression", image_size=image_size, smallest=_SMALLEST)
    if image_size % _SMALLEST:
        raise BadMember(
            f"image_compression(image_size={image_size})",
            why=f"the image is halved {len(_HALVES)} times, so its side must be a multiple of {_SMALLEST}",
            remedy=f"--image-size {image_size // _SMALLEST * _SMALLEST}",
        )
    model = nn.Sequential(*_encoder(), *_decoder(), nn.Conv2d(_DECODER[-1], 3, 1))
    initialize(model, mode="fan_in")
    _initialize_transposed(model)
    samples = Images(image_size, classes=1000)
    return Workload(model, _loss, lambda ids: samples(ids)[:1])


def _loss(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
    (images,) = batch
    return F.mse_loss(model(images), images)


def _initialize_transposed(model: nn.Module) -> None:
    """Scale transposed convolutions as `initialize` does; with stride 2 a pixel uses a quarter of the kernel."""
    for layer in model.modules():
        if isinstance(layer, nn.ConvTranspose2d) and layer.bias is not None:
            inputs, _, height, width = layer.weight.shape
            seen = inputs * height * width / layer.stride[0] ** 2
            nn.init.normal_(layer.weight, std=(2 / seen) ** 0.5)
            nn.init.zeros_(layer.bias)


def _encoder() -> list[nn.Module]:
    steps: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise((3, *_ENCODER))):
        stride = 2 if index in _HALVES else 1
        steps += [nn.Conv2d(inputs, outputs, 3, stride, padding=1), nn.ReLU(inplace=True)]
    return steps


def _decoder() -> list[nn.Module]:
    steps: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise((_ENCODER[-1], *_DECODER))):
        grow = 1 if index in _DOUBLES else 0
        layer = nn.ConvTranspose2d(inputs, outputs, 3, 1 + grow, padding=1, output_padding=grow)
        steps += [layer, nn.ReLU(inplace=True)]
    return steps
