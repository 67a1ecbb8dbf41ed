"""A user's own data: dataset(package.module:function), where the function returns a torch Dataset or DataLoader.

Samples are collated with the DataLoader's collate_fn, or with torch's default: tensors in tuples or dicts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.errors import WorkloadError, WrongCommand
from paceline.menu.menu import Member
from paceline.types import Workload
from paceline.workload.order import Permuted
from paceline.workload.own import function_of

if TYPE_CHECKING:
    from torch import Tensor

_ENTRY = re.compile(r" at entry ([1-9]\d*)$")


@dataclass(frozen=True)
class Dataset(Member):
    name: ClassVar[str] = "dataset"
    kind: ClassVar[str] = "indexable"

    function: str

    @property
    def constant(self) -> bool:
        return False

    def order(self, global_batch: int, seed: int) -> Permuted:
        return Permuted(len(self._own), global_batch, seed)

    def fit(self) -> dict[str, int]:
        """Return no settings: the model must accept the samples of the user's function."""
        return {}

    def samples_of(self, workload: Workload) -> Own:
        return self._own

    def notes(self) -> tuple[str, ...]:
        count = self._own.processes
        if not count:
            return ()
        what = f"samples of {self.name}({self.function}) are made in a thread of each worker"
        return (f"{what}, without the {count} processes of its DataLoader. try: queue({self}, producers={count})",)

    def tests(self) -> None:
        """Return None: there are no test samples."""

    @cached_property
    def _own(self) -> Own:
        from torch.utils.data import DataLoader, default_collate

        if ":" not in self.function:
            raise WrongCommand(f"source {self}", why="it names a function", remedy="dataset(package.module:function)")
        made = function_of(self.function, "source")()
        loader = made if isinstance(made, DataLoader) else None
        data, collate = (made, default_collate) if loader is None else (loader.dataset, loader.collate_fn)
        if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
            raise WorkloadError(
                f"source {self} returned a {type(made).__name__}",
                why="it has no samples by number, so their order could not be kept or resumed",
                remedy="a Dataset with __len__ and __getitem__; a stream goes to worker.batches in your own loop",
            )
        return Own(data, collate, 0 if loader is None else loader.num_workers)


@dataclass(frozen=True)
class Own:
    """Samples of a torch Dataset. Calling it with ids returns a batch. `processes` are those of the user's loader."""

    data: Any
    collate: Any
    processes: int = 0

    def __len__(self) -> int:
        return len(self.data)

    def __call__(self, ids: Tensor) -> Any:
        rows = [self.data[sample] for sample in ids.tolist()]
        try:
            return self.collate(rows)
        except (RuntimeError, TypeError) as problem:
            why = str(problem).splitlines()[0]
            entry = _ENTRY.search(why)  # torch counts inside the batch
            odd = f"sample {int(ids[int(entry[1])])} does not fit to sample {int(ids[0])}" if entry else ""
            raise WorkloadError(
                odd or f"samples {', '.join(map(str, ids.tolist()[:4]))}, ... cannot be put together",
                why=why,
                remedy="samples of one size, or a DataLoader with its own collate_fn",
            ) from None
