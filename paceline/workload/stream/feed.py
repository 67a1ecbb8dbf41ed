"""The feed of a stream: batches as they arrive. A stream cannot repeat a batch, so a run cannot be resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paceline.errors import WorkloadError, WrongCommand
from paceline.types import Cursor
from paceline.workload.loader import count
from paceline.workload.sources._source import Stream


class StreamFeed:
    """An endless iterator over the batches of a stream, all of one size."""

    correction = 1.0
    ids = None  # samples of a stream have no number

    def __init__(
        self, stream: Stream, name: str, batch: int, *, parts: int, accumulate: int, place: Callable[[Any], Any]
    ) -> None:
        self._stream, self._name, self._batch, self._place = stream, name, batch, place
        self._parts, self._accumulate = parts, accumulate
        self.cursor, self.micro = Cursor(), 0
        self.count = self.total = 0

    @property
    def weight(self) -> float:
        return 1.0 / self._parts

    def __iter__(self) -> StreamFeed:
        return self

    def __next__(self) -> Any:
        batch = self._stream.take()
        self.count, self.total = count(batch), self._batch * self._parts
        if self.count != self._batch:
            raise WorkloadError(
                f"{self._name} sends batches of {self.count}",
                why=f"this run takes {self._batch} samples in each backward of a worker",
                remedy=f"--batch-size {self.count}",
            )
        self.micro = (self.micro + 1) % self._accumulate
        if not self.micro:
            self.cursor = Cursor(0, self.cursor.step + 1, self.cursor.seed)
        return self._place(batch)

    def state(self) -> dict[str, int]:
        raise self._refusal()

    def restore(self, state: Mapping[str, int]) -> None:
        raise self._refusal()

    def close(self) -> None:
        self._stream.close()

    def _refusal(self) -> WrongCommand:
        return WrongCommand(
            f"a checkpoint with source {self._name}",
            why="a stream has no order that could be resumed",
            remedy="a source of files, such as tfrecord(DIR)",
        )
