"""Write the samples of any indexable source to TFRecord shards, and check shards record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import WorkloadError, WrongCommand
from paceline.types import spread
from paceline.workload.objects.address import is_address
from paceline.workload.tfrecord.example import encode
from paceline.workload.tfrecord.frames import Damage, write
from paceline.workload.tfrecord.places import File, ShardPlace, place_of
from paceline.workload.tfrecord.shards import INDEX, NAME, Shard, write_index

if TYPE_CHECKING:
    from paceline.workload.sources._source import Samples

BATCH = 64  # samples that are made at once
Progress = Callable[[int, int], None]  # samples written so far, and all samples


def pack(train: Samples, tests: Samples | None, folder: Path, shards: int, progress: Progress) -> list[Shard]:
    """Write train-00000-of-N and test-00000-of-M with their index; the folder must be new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WrongCommand(f"data pack into {folder}", why="it exists and is not empty", remedy="a new folder")
    if not 1 <= shards <= min(99_999, len(train)):
        raise WrongCommand(
            f"--shards {shards}", why=f"{len(train):,} samples fill 1 to {min(99_999, len(train)):,} shards"
        )
    folder.mkdir(parents=True, exist_ok=True)
    count = len(train) + (len(tests) if tests is not None else 0)
    layout = _Layout()
    parts = {"train": _part(train, "train", folder, shards, layout, lambda n: progress(n, count))}
    if tests is not None:
        few = max(1, min(shards, len(tests), round(shards * len(tests) / len(train))))
        parts["test"] = _part(tests, "test", folder, few, layout, lambda n: progress(len(train) + n, count))
    write_index(folder, parts, layout.fields, layout.classes)
    return [shard for part in parts.values() for shard in part]


@dataclass
class _Layout:
    """The layout of every sample: dtype and shape of each tensor, and the number of classes if it has labels."""

    fields: list[dict[str, Any]] = field(default_factory=list)
    classes: int = 0

    def take(self, batch: Any, first: int) -> tuple[Any, ...]:
        """Check that a batch has the layout of the batches before it."""
        import torch

        if not isinstance(batch, (tuple, list)) or not all(isinstance(part, torch.Tensor) for part in batch):
            raise WorkloadError("data pack", why="its samples are not a tuple of tensors")
        fields = [{"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape[1:])} for t in batch]
        if self.fields and fields != self.fields:
            raise WorkloadError(
                f"samples from {first} on have {fields}",
                why=f"those before have {self.fields}",
                remedy="one size for all",
            )
        self.fields = fields
        labels = batch[-1]
        if labels.dim() == 1 and labels.dtype == torch.int64:
            self.classes = max(self.classes, 1 + int(labels.max()))
        return tuple(batch)


def _part(
    samples: Samples, name: str, folder: Path, shards: int, layout: _Layout, progress: Callable[[int], None]
) -> list[Shard]:
    bounds, made = spread(len(samples), shards), []
    for number in range(shards):
        path = folder / f"{name}-{number:05d}-of-{shards:05d}"
        with open(path, "xb") as stream:
            offsets = write(stream, _records(samples, bounds[number], bounds[number + 1], layout))
        made.append(Shard(path, path.stat().st_size, tuple(offsets)))
        progress(bounds[number + 1])
    return made


def _records(samples: Samples, start: int, stop: int, layout: _Layout) -> Iterator[bytes]:
    import torch

    for first in range(start, stop, BATCH):
        tensors = layout.take(samples(torch.arange(first, min(stop, first + BATCH))), first)
        for row in range(len(tensors[0])):
            yield encode({str(key): tensor[row].contiguous().numpy().tobytes() for key, tensor in enumerate(tensors)})


@dataclass
class PackCheck:
    """The result of checking shards."""

    files: int = 0
    records: int = 0
    nbytes: int = 0
    damages: list[Damage] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        damages = [vars(damage) for damage in self.damages]
        return {"files": self.files, "records": self.records, "bytes": self.nbytes, "damages": damages}


def verify(where: str | Path, endpoint: str = "") -> PackCheck:
    """Check the checksums of every record in every shard. A damaged file does not stop the check."""
    text = str(where)
    alone = not is_address(text) and Path(text).is_file()
    place = place_of(str(Path(text).parent) if alone else text, endpoint)
    files = [Path(text)] if alone else [f for f in _listed(place, text) if NAME.fullmatch(f.name) and f.name != INDEX]
    if not files:
        raise WrongCommand(
            f"data verify {text}", why="it holds no TFRecord files", remedy="a folder of shards, or a file"
        )
    verdict = PackCheck()
    for file in files:
        verdict.files += 1
        verdict.nbytes += place.size(file)
        verdict.records += sum(1 for _ in place.scan(file, verdict.damages, contents=True))
    return verdict


def _listed(place: ShardPlace, text: str) -> Sequence[File]:
    if not is_address(text) and not Path(text).is_dir():
        raise WrongCommand(f"data verify {text}", why="there is no such file or folder")
    return place.files()
