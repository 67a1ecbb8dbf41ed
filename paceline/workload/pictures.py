"""Decode images with Pillow, and augment them as a function of seed, epoch and sample.

training    a random part of the image, scaled to size x size, flipped every second time
test        the shorter side scaled to size / 0.875, then the middle size x size

pixel = (byte / 255 - mean) / deviation            per channel, those of ImageNet
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import MissingPackage, WorkloadError

if TYPE_CHECKING:
    from torch import Tensor

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MOST_PIXELS = 1 << 26  # pixels of one image, because a small file can announce a huge image


def decode(data: bytes | memoryview, name: str, size: int, dice: random.Random | None) -> Any:
    """Return an image of size x size as bytes of its channels; `dice` is None for tests."""
    image_of = _pillow()
    try:
        image = image_of.open(io.BytesIO(data))
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels")
        image = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, image_of.DecompressionBombError) as problem:
        raise WorkloadError(f"{name} is no image that can be read", why=str(problem)) from None
    box = _middle(image.width, image.height) if dice is None else _part(image.width, image.height, dice)
    image = image.resize((size, size), image_of.Resampling.BILINEAR, box=box)
    if dice is not None and dice.random() < 0.5:
        image = image.transpose(image_of.Transpose.FLIP_LEFT_RIGHT)
    return image.tobytes()


def dice_of(seed: int, epoch: int, sample: int) -> random.Random:
    """Return random numbers for one sample in one epoch. They do not depend on the process that decodes it."""
    return random.Random(f"{seed} {epoch} {sample}")


def normalized(images: Sequence[bytes], size: int) -> Tensor:
    """Return images as floats: count x 3 x size x size."""
    import torch

    raw = torch.frombuffer(bytearray().join(images), dtype=torch.uint8).view(len(images), size, size, 3)
    mean, deviation = torch.tensor(MEAN) * 255, torch.tensor(DEVIATION) * 255
    return raw.permute(0, 3, 1, 2).float().sub_(mean.view(3, 1, 1)).div_(deviation.view(3, 1, 1))


def _middle(width: int, height: int) -> tuple[float, float, float, float]:
    side = min(width, height) * 0.875
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _part(width: int, height: int, dice: random.Random) -> tuple[float, float, float, float]:
    """Return a random crop with 8 % to 100 % of the area and an aspect ratio between 3:4 and 4:3."""
    for _ in range(10):
        area = width * height * dice.uniform(0.08, 1.0)
        ratio = math.exp(dice.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if wide <= width and high <= height:
            left, top = dice.uniform(0, width - wide), dice.uniform(0, height - high)
            return left, top, left + wide, top + high
    return _middle(width, height)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingPackage("decoding images", package="pillow", extra="images") from None
    return Image
