"""The iterator that `worker.batches` returns: one rank's share of the data, with a position that can be saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paceline.errors import WrongCommand
from paceline.types import Cursor
from paceline.workload.loader import Dealt


class Batches:
    """An iterator over this rank's batches, on the device.

    `state_dict()` returns the position of the next batch. `load_state_dict()` continues from there, even inside
    an epoch. It must be called before the first batch is taken.
    """

    def __init__(
        self,
        begin: Callable[[Cursor], Iterator[Dealt]],
        start: Cursor,
        took: Callable[[Dealt], None],
        place: Callable[[Any], Any],
        waited: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._begin, self.cursor, self._took, self._place, self._waited = begin, start, took, place, waited
        self._dealt: Iterator[Dealt] | None = None

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        began = time.perf_counter()
        if self._dealt is None:
            self._dealt = self._begin(self.cursor)
        dealt = next(self._dealt)
        self.cursor = Cursor(dealt.cursor.epoch, dealt.cursor.step, self.cursor.seed)
        self._took(dealt)
        batch = self._place(dealt.batch)
        self._waited(time.perf_counter() - began)
        return batch

    def state_dict(self) -> dict[str, int]:
        """Return the position of the next batch, for `load_state_dict`."""
        return {"epoch": self.cursor.epoch, "step": self.cursor.step, "seed": self.cursor.seed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from a saved position.

        Data, seed and global batch size must be the same as in the run that saved it.
        """
        if self._dealt is not None:
            raise WrongCommand("load_state_dict", why="a batch was taken already", remedy="load it before the loop")
        if state["seed"] != self.cursor.seed:
            raise WrongCommand(
                f"load_state_dict of seed {state['seed']}",
                why=f"these batches have seed {self.cursor.seed}, which is another order",
                remedy=f"batches(..., seed={state['seed']})",
            )
        self.cursor = Cursor(state["epoch"], state["step"], state["seed"])
