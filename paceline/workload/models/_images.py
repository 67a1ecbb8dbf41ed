"""Images made from their ids, with labels that can be learned.

    image[id] = noise at an offset computed from id  +  a coarse pattern of label[id]

An image depends on its id alone: not on the batch around it, nor on rank or order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.errors import BadMember, WorkloadError
from paceline.types import Workload, spread
from paceline.workload.models._scatter import scatter

_OFFSETS = 1 << 16  # places in the noise where an image may start
_GRID = 8  # cells per side of a pattern
_POOL_SEED = 20200814
_LABEL, _NOISE, _PATTERN = 1 << 40, 2 << 40, 3 << 40  # salts, farther apart than the number of ids


@dataclass(frozen=True)
class Images:
    """Synthetic images: batch(ids) -> (images of channels x size x size, labels)."""

    size: int
    classes: int
    channels: int = 3

    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        labels = scatter(ids, _LABEL) % self.classes
        images = self._cut(scatter(ids, _NOISE), self.size)
        self._paint(images, self._cut(scatter(labels, _PATTERN), _GRID))
        return images, labels

    @cached_property
    def _pool(self) -> Tensor:
        generator = torch.Generator().manual_seed(_POOL_SEED)
        numel = _OFFSETS + self.channels * max(self.size, _GRID) ** 2
        # noise and pattern have variance 1/2 each, so that pixels have variance 1
        return torch.randn(numel, generator=generator, device="cpu").mul_(0.5**0.5)

    def _cut(self, numbers: Tensor, size: int) -> Tensor:
        windows = self._pool.unfold(0, self.channels * size * size, 1)
        return windows.index_select(0, numbers % _OFFSETS).view(-1, self.channels, size, size)

    def _paint(self, images: Tensor, pattern: Tensor) -> None:
        """Add the pattern band by band, because stretching it to whole images would need the memory of a batch."""
        bounds = list(pairwise(spread(self.size, _GRID)))
        columns = torch.tensor([cell for cell, (a, b) in enumerate(bounds) for _ in range(a, b)], device="cpu")
        bands = pattern.index_select(3, columns)
        for row, (top, bottom) in enumerate(bounds):
            images[:, :, top:bottom] += bands[:, :, row : row + 1]


def classifier(model: nn.Module, *, classes: int, image_size: int, channels: int = 3) -> Workload:
    """Return the workload of an image classifier, trained with cross-entropy."""

    def smoothed(amount: float) -> Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]:
        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            images, labels = batch
            return F.cross_entropy(_logits(model(images), classes), labels, label_smoothing=amount)

        return loss

    def grade(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        images, labels = batch
        scores = _logits(model(images), classes)
        place = _place(scores, labels)
        return torch.stack([place < 1, place < 5], 1), F.cross_entropy(scores, labels, reduction="none")

    return Workload(model, smoothed(0.0), Images(image_size, classes, channels), grade=grade, smoothed=smoothed)


def _place(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the position of the right class if classes are sorted by score, from 0. With NaN scores it is the last."""
    own = scores.gather(1, labels.unsqueeze(1))
    index = torch.arange(scores.shape[1], device=scores.device)
    earlier = (scores == own) & (index < labels.unsqueeze(1))  # among equal scores the first class is the best
    return (~(scores <= own) | earlier).sum(1)


def check_image(word: str, *, image_size: int, classes: int = 1, smallest: int = 1, channels: int = 3) -> None:
    """Raise if images are too small for the network, or if there is no class."""
    if channels < 1:
        raise BadMember(f"{word}(channels={channels})", why="an image has at least one channel")
    if image_size < smallest:
        raise BadMember(
            f"{word}(image_size={image_size})",
            why=f"{word} needs images of at least {smallest} pixels a side",
            remedy=f"--image-size {smallest} or more",
        )
    if classes < 1:
        raise BadMember(f"{word}(classes={classes})", why="there is at least one class")


def _logits(output: Any, classes: int) -> Tensor:
    """Return the class scores of a network; networks with auxiliary outputs (googlenet) hold them in `logits`."""
    scores = getattr(output, "logits", output)
    if not isinstance(scores, Tensor) or scores.dim() != 2:
        shape = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise WorkloadError(
            f"the model returns {shape}",
            why="a bare Module must return one row of class scores per image",
            remedy="return a paceline.types.Workload with its own loss",
        )
    if scores.shape[1] < classes:
        raise WorkloadError(
            f"the model returns {scores.shape[1]} scores per image",
            why=f"the labels have {classes} classes",
            remedy=f"--classes {scores.shape[1]}",
        )
    return scores
