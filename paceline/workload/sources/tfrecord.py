"""Samples in TFRecord shards: those of `paceline data pack`, or JPEG images as ImageNet is stored.

    FOLDER/train-00000-of-01024       image/encoded, image/class/label (counted from `first`)
    FOLDER/validation-00000-of-00128  the test part

FOLDER may be an address of an object store, s3://BUCKET/PREFIX.
Shards are read in lanes: see Laned in paceline/workload/order.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.errors import BadMember, DamagedFile, WorkloadError
from paceline.menu.menu import Member
from paceline.types import Workload
from paceline.workload.objects.address import is_address
from paceline.workload.objects.bucket import Counts
from paceline.workload.order import Laned
from paceline.workload.tfrecord.alike import Alike, Columns
from paceline.workload.tfrecord.frames import Lengths, crc32c, unpack
from paceline.workload.tfrecord.places import Objects, ShardPlace, place_of
from paceline.workload.tfrecord.shards import Shard, Shards, read_shards

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TfRecord(Member):
    name: ClassVar[str] = "tfrecord"
    kind: ClassVar[str] = "indexable"

    folder: str
    lanes: int = 8
    window: int = 1024
    size: int = 224
    classes: int = 1000
    first: int = 1
    endpoint: str = ""

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.window < 1 or self.size < 1 or self.classes < 1:
            raise BadMember(f"{self}", why="lanes, window, size and classes are at least 1")

    @property
    def constant(self) -> bool:
        return False

    def order(self, global_batch: int, seed: int) -> Laned:
        counts = tuple(len(shard.offsets) for shard in self._train.shards)
        return Laned(counts, global_batch, self.lanes, self.window, seed)

    def fit(self) -> dict[str, int]:
        fields = self._train.fields
        if not fields:
            return self._images
        shape = fields[0]["shape"]
        fit = {"channels": shape[0], "image_size": shape[1]} if len(shape) == 3 else {}
        return {**fit, "classes": self._train.classes} if self._train.classes else fit

    def declared(self) -> dict[str, int] | None:
        return self._images if is_address(self.folder) else None

    def samples_of(self, workload: Workload) -> ShardRecords:
        return ShardRecords(self._place, self._train, self, 0, 0)

    def tests(self) -> ShardRecords | None:
        shards = read_shards(self._place, "test")
        return None if shards is None else ShardRecords(self._place, shards, self, None, 0)

    def counts(self) -> Counts | None:
        """Return the requests to an object store so far; None for a folder."""
        return self._place.bucket.counts if isinstance(self._place, Objects) else None

    @property
    def _images(self) -> dict[str, int]:
        return {"channels": 3, "image_size": self.size, "classes": self.classes}

    @cached_property
    def _place(self) -> ShardPlace:
        return place_of(self.folder, self.endpoint)

    @cached_property
    def _train(self) -> Shards:
        shards = read_shards(self._place, "train")
        assert shards is not None, "no training files are an error"
        return shards


class ShardRecords:
    """Records by id. Training images are augmented depending on `epoch`; with None they are not augmented."""

    def __init__(self, place: ShardPlace, shards: Shards, source: TfRecord, epoch: int | None, seed: int) -> None:
        self._place, self._shards, self._source, self._epoch, self._seed = place, shards, source, epoch, seed
        self._lengths, self._decode = Lengths(crc32c()), Alike()

    def __len__(self) -> int:
        return len(self._shards)

    def at(self, seed: int, epoch: int) -> ShardRecords:
        """Set the epoch for augmentation. Everything else depends on the ids alone."""
        if self._epoch is not None:
            self._seed, self._epoch = seed, epoch
        return self

    def expect(self, ids: Tensor) -> None:
        """Start to fetch samples that are needed soon."""
        for sample in ids.tolist() if isinstance(self._place, Objects) else ():
            shard, number = self._shards.find(sample)
            self._place.expect(shard.path, *shard.frame(number))

    def __call__(self, ids: Tensor) -> Any:
        places = [(sample, *self._shards.find(sample)) for sample in ids.tolist()]
        data = [self._data(shard, number) for _, shard, number in places]
        try:
            columns = self._decode(data)
        except ValueError:
            raise self._wrong([(shard, number) for _, shard, number in places], data) from None
        rows = [(sample, f"record {number} of {shard.path}") for sample, shard, number in places]
        return self._tensors(rows, columns) if self._shards.fields else self._images(rows, columns)

    def _wrong(self, places: list[tuple[Shard, int]], data: list[bytes]) -> DamagedFile:
        """Return the error that names the first record that cannot be decoded."""
        for (shard, number), record in zip(places, data, strict=True):
            try:
                self._decode([record])
            except ValueError as problem:
                why = f"record {number} is no Example ({problem})"
                return DamagedFile(shard.path, shard.offsets[number], why=why)
        raise AssertionError("records that cannot be decoded together only")

    def _data(self, shard: Shard, number: int) -> bytes:
        start, count = shard.frame(number)
        return unpack(shard.path, number, start, self._place.read(shard.path, start, count), self._lengths)

    def _tensors(self, rows: list[tuple[int, str]], columns: Columns) -> tuple[Tensor, ...]:
        """Make a batch from records of `data pack`, in which field k holds the bytes of tensor k."""
        import torch

        out = []
        for key, field in enumerate(self._shards.fields):
            dtype, shape = getattr(torch, field["dtype"]), field["shape"]
            parts = _bytes(columns, str(key), rows)
            want = torch.Size(shape).numel() * dtype.itemsize
            for part, (_, name) in zip(parts, rows, strict=True):
                if len(part) != want:
                    raise WorkloadError(f"{name} has {len(part)} bytes in field {key}", why=f"all have {want}")
            out.append(torch.frombuffer(bytearray().join(parts), dtype=dtype).view(len(rows), *shape))
        return tuple(out)

    def _images(self, rows: list[tuple[int, str]], columns: Columns) -> tuple[Tensor, Tensor]:
        import torch

        from paceline.workload.pictures import decode, dice_of, normalized

        images, encoded = [], _bytes(columns, "image/encoded", rows)
        values = columns.get("image/class/label") or [None] * len(rows)
        labels = [self._label(value or [], name) for value, (_, name) in zip(values, rows, strict=True)]
        for data, (sample, name) in zip(encoded, rows, strict=True):
            dice = None if self._epoch is None else dice_of(self._seed, self._epoch, sample)
            images.append(decode(data, name, self._source.size, dice))
        return normalized(images, self._source.size), torch.tensor(labels)

    def _label(self, values: list[Any], name: str) -> int:
        label = int(values[0]) - self._source.first if len(values) == 1 else -1
        if not 0 <= label < self._source.classes:
            top = self._source.first + self._source.classes - 1
            raise WorkloadError(
                f"{name} has the label {values[0] if values else '(none)'}",
                why=f"labels are {self._source.first} to {top}",
                remedy="tfrecord(..., classes=N, first=0)",
            )
        return label


def _bytes(columns: Columns, key: str, rows: list[tuple[int, str]]) -> list[Any]:
    """Return the bytes of one field in all records; each record must have one value."""
    column = columns.get(key) or [None] * len(rows)
    for k, values in enumerate(column):
        if not values or len(values) != 1 or isinstance(values[0], (int, float)):
            own = sorted(name for name, others in columns.items() if others[k] is not None)
            raise WorkloadError(f"{rows[k][1]} has no field {key}", why=f"its fields are {', '.join(own) or 'none'}")
    return [values[0] for values in column]
