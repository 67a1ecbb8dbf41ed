"""Images in idx files, the format of MNIST and Fashion-MNIST, plain or .gz.

    FOLDER/train-images-idx3-ubyte   60000 x 28 x 28 bytes       FOLDER/t10k-images-idx3-ubyte   10000 x 28 x 28
    FOLDER/train-labels-idx1-ubyte   60000 bytes                 FOLDER/t10k-labels-idx1-ubyte   10000

    pixel = (byte - mean) / deviation, both of all training images

The t10k files are the test part, which is optional. `channels=3` repeats the gray image for networks that expect
colors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from paceline.errors import BadMember, DamagedFile, WrongCommand
from paceline.menu.menu import Member
from paceline.types import Workload
from paceline.workload.objects.address import refuse_address
from paceline.workload.order import Permuted
from paceline.workload.sources._idxfile import IdxFile, look

if TYPE_CHECKING:
    from torch import Tensor

_ENDINGS = ("-idx{}-ubyte", ".idx{}-ubyte", "-idx{}-ubyte.gz", ".idx{}-ubyte.gz")


@dataclass(frozen=True)
class Idx(Member):
    name: ClassVar[str] = "idx"
    kind: ClassVar[str] = "indexable"

    folder: str
    channels: int = 1

    def __post_init__(self) -> None:
        refuse_address(self.folder, self.name)
        if self.channels not in (1, 3):
            raise BadMember(f"idx(channels={self.channels})", why="an image is gray (1) or has colors (3)")

    @property
    def constant(self) -> bool:
        return False

    def order(self, global_batch: int, seed: int) -> Permuted:
        return Permuted(self._files("train")[0].sizes[0], global_batch, seed)

    def fit(self) -> dict[str, int]:
        images, labels = self._files("train")
        _, rows, columns = images.sizes
        if rows != columns:
            raise WrongCommand(f"source {self}", why=f"its images are {rows} x {columns}, and models take squares")
        return {"channels": self.channels, "image_size": rows, "classes": 1 + max(labels.read())}

    def samples_of(self, workload: Workload) -> IdxPart:
        return self._train

    def tests(self) -> IdxPart | None:
        if self._find("t10k", "images", 3) is None:
            return None
        images, labels = self._files("t10k")
        if images.sizes[1:] != self._files("train")[0].sizes[1:]:
            raise DamagedFile(images.path, 8, why="its images and the training images differ in size")
        return IdxPart(_tensor(images), _tensor(labels), self._train.mean, self._train.deviation, self.channels)

    @cached_property
    def _train(self) -> IdxPart:
        """Return the training part, read once per source object."""
        images, labels = self._files("train")
        pixels = _tensor(images)
        mean, deviation = _moments(pixels)
        return IdxPart(pixels, _tensor(labels), mean, deviation, self.channels)

    def _files(self, part: str) -> tuple[IdxFile, IdxFile]:
        images, labels = (look(self._place(part, what, count), count) for what, count in (("images", 3), ("labels", 1)))
        if images.sizes[0] != labels.sizes[0]:
            raise DamagedFile(
                labels.path,
                4,
                why=f"it has {labels.sizes[0]} labels for {images.sizes[0]} images of {images.path.name}",
            )
        return images, labels

    def _place(self, part: str, what: str, dimensions: int) -> Path:
        path = self._find(part, what, dimensions)
        if path is None:
            raise WrongCommand(
                f"source {self}",
                why=f"{self.folder} holds no {part}-{what}{_ENDINGS[0].format(dimensions)}, plain or .gz",
                remedy="apt-get install dataset-fashion-mnist, and idx(/usr/share/datasets/fashion-mnist)",
            )
        return path

    def _find(self, part: str, what: str, dimensions: int) -> Path | None:
        names = [f"{part}-{what}{ending.format(dimensions)}" for ending in _ENDINGS]
        places = [Path(self.folder).expanduser() / name for name in names]
        return next((place for place in places if os.path.isfile(place)), None)


@dataclass(frozen=True)
class IdxPart:
    """Images and labels of one part; calling it with ids returns a batch."""

    images: Tensor  # bytes: count x rows x columns
    labels: Tensor
    mean: float
    deviation: float
    channels: int

    def __len__(self) -> int:
        return len(self.labels)

    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        pixels = self.images.index_select(0, ids).float().sub_(self.mean).div_(self.deviation)
        return pixels.unsqueeze(1).repeat(1, self.channels, 1, 1), self.labels.index_select(0, ids).long()


def _tensor(file: IdxFile) -> Tensor:
    import torch

    return torch.frombuffer(file.read(), dtype=torch.uint8).view(file.sizes)


def _moments(pixels: Tensor) -> tuple[float, float]:
    """Return mean and deviation of all bytes, from their counts so that the bits do not depend on threads."""
    import torch

    counts = torch.bincount(pixels.flatten(), minlength=256).double()
    values = torch.arange(256).double()
    mean = float((counts * values).sum() / counts.sum())
    variance = float((counts * (values - mean) ** 2).sum() / counts.sum())
    return mean, max(variance, 1.0) ** 0.5
