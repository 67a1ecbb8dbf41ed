"""CIFAR-10 in its binary form: records of one label and 3 x 32 x 32 bytes.

FOLDER/data_batch_1.bin ... data_batch_5.bin     10,000 records of 3,073 bytes each
FOLDER/test_batch.bin                            the test part
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from paceline.errors import DamagedFile, WrongCommand
from paceline.files.read import read_bytes
from paceline.menu.menu import Member
from paceline.types import Workload
from paceline.workload.objects.address import refuse_address
from paceline.workload.order import Permuted

if TYPE_CHECKING:
    from torch import Tensor

RECORD, SIDE, CLASSES = 3073, 32, 10
LARGEST = 64 << 20  # bytes of one file


@dataclass(frozen=True)
class Cifar10(Member):
    name: ClassVar[str] = "cifar10"
    kind: ClassVar[str] = "indexable"

    folder: str

    def __post_init__(self) -> None:
        refuse_address(self.folder, self.name)

    @property
    def constant(self) -> bool:
        return False

    def order(self, global_batch: int, seed: int) -> Permuted:
        return Permuted(sum(path.stat().st_size for path in self._files) // RECORD, global_batch, seed)

    def fit(self) -> dict[str, int]:
        for path in self._files:
            if not path.stat().st_size or path.stat().st_size % RECORD:
                raise DamagedFile(path, path.stat().st_size, why=f"it is not made of records of {RECORD:,} bytes")
        return {"channels": 3, "image_size": SIDE, "classes": CLASSES}

    def samples_of(self, workload: Workload) -> Pictures:
        return self._train

    def tests(self) -> Pictures | None:
        path = self._folder / "test_batch.bin"
        return Pictures(_read([path]), self._train.mean, self._train.deviation) if path.is_file() else None

    @property
    def _folder(self) -> Path:
        return Path(self.folder).expanduser()

    @cached_property
    def _files(self) -> list[Path]:
        files = sorted(self._folder.glob("data_batch_*.bin"))
        if not files:
            raise WrongCommand(
                f"source {self}",
                why=f"{self.folder} holds no data_batch_1.bin",
                remedy="unpack cifar-10-binary.tar.gz there",
            )
        return files

    @cached_property
    def _train(self) -> Pictures:
        self.fit()
        raw = _read(self._files)
        pixels = raw[:, 1:].reshape(len(raw), 3, -1).double()
        return Pictures(raw, pixels.mean((0, 2)).float(), pixels.std((0, 2)).float().clamp(min=1.0))


@dataclass(frozen=True)
class Pictures:
    """Images and labels; calling it with ids returns a batch."""

    raw: Tensor  # bytes: count x 3073
    mean: Tensor
    deviation: Tensor

    def __len__(self) -> int:
        return len(self.raw)

    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.raw.index_select(0, ids)
        pixels = rows[:, 1:].reshape(-1, 3, SIDE, SIDE).float()
        pixels = pixels.sub_(self.mean.view(3, 1, 1)).div_(self.deviation.view(3, 1, 1))
        return pixels, rows[:, 0].long()


def _read(files: list[Path]) -> Tensor:
    import torch

    content = bytearray().join(read_bytes(path, LARGEST) for path in files)
    raw = torch.frombuffer(content, dtype=torch.uint8).view(-1, RECORD)
    wrong = (raw[:, 0] >= CLASSES).nonzero()
    if len(wrong):
        place, label = int(wrong[0]), int(raw[wrong[0], 0])
        raise DamagedFile(
            files[0].parent, place * RECORD, why=f"sample {place} has the label {label}, of {CLASSES} classes"
        )
    return raw
