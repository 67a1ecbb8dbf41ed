"""Images in folders, one folder per class: JPEG, PNG and all other formats that Pillow reads.

FOLDER/train/CLASS/picture.jpg          FOLDER/val/CLASS/picture.jpg is the test part
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from paceline.errors import BadMember, WrongCommand
from paceline.files.read import read_bytes
from paceline.menu.menu import Member
from paceline.types import Workload
from paceline.workload.objects.address import refuse_address
from paceline.workload.order import Permuted

if TYPE_CHECKING:
    from torch import Tensor

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm")
LARGEST = 256 << 20  # bytes of one file


@dataclass(frozen=True)
class ImageFolder(Member):
    name: ClassVar[str] = "imagefolder"
    kind: ClassVar[str] = "indexable"

    folder: str
    size: int = 224

    def __post_init__(self) -> None:
        refuse_address(self.folder, self.name)
        if self.size < 1:
            raise BadMember(f"{self}", why="an image has at least one pixel a side")

    @property
    def constant(self) -> bool:
        return False

    def order(self, global_batch: int, seed: int) -> Permuted:
        return Permuted(len(self._train), global_batch, seed)

    def fit(self) -> dict[str, int]:
        return {"channels": 3, "image_size": self.size, "classes": len(self._classes)}

    def samples_of(self, workload: Workload) -> Files:
        return Files(self._train, self.size, 0)

    def tests(self) -> Files | None:
        folder = self._folder / "val"
        return Files(self._list(folder), self.size, None) if folder.is_dir() else None

    @property
    def _folder(self) -> Path:
        return Path(self.folder).expanduser()

    @cached_property
    def _classes(self) -> dict[str, int]:
        root = self._folder / "train"
        names = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
        if not names:
            raise WrongCommand(
                f"source {self}", why=f"{root} holds no folders of classes", remedy="FOLDER/train/CLASS/x.jpg"
            )
        return {name: number for number, name in enumerate(names)}

    @cached_property
    def _train(self) -> tuple[tuple[Path, int], ...]:
        return self._list(self._folder / "train")

    def _list(self, root: Path) -> tuple[tuple[Path, int], ...]:
        unknown = sorted({path.name for path in root.iterdir() if path.is_dir()} - set(self._classes))
        if unknown:
            raise WrongCommand(f"source {self}", why=f"class {unknown[0]} in {root} has no training images")
        files = [
            (path, number)
            for name, number in self._classes.items()
            for path in sorted((root / name).rglob("*"))
            if path.suffix.lower() in ENDINGS
        ]
        if not files:
            raise WrongCommand(f"source {self}", why=f"{root} holds no images", remedy=f"files {', '.join(ENDINGS)}")
        return tuple(files)


@dataclass
class Files:
    """Image files by id. Training images are augmented depending on `epoch`; with None they are not augmented."""

    files: tuple[tuple[Path, int], ...]
    size: int
    epoch: int | None
    seed: int = 0

    def __len__(self) -> int:
        return len(self.files)

    def at(self, seed: int, epoch: int) -> Files:
        """Set the epoch for augmentation. Everything else depends on the ids alone."""
        if self.epoch is not None:
            self.seed, self.epoch = seed, epoch
        return self

    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        from paceline.workload.pictures import decode, dice_of, normalized

        images = []
        for sample in ids.tolist():
            dice = None if self.epoch is None else dice_of(self.seed, self.epoch, sample)
            path = self.files[sample][0]
            images.append(decode(read_bytes(path, LARGEST), str(path), self.size, dice))
        labels = [self.files[sample][1] for sample in ids.tolist()]
        return normalized(images, self.size), torch.tensor(labels)
