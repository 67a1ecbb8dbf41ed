"""Every rank writes to its neighbors' memory and continues with what has arrived in its own; no rank waits.

    averaging    y[i] = (keep x[i] + sum_j weight[i, j] x[j]) / (keep + sum_j weight[i, j])      j: those that arrived
    mass         y[i] = share x[i] + sum of all shares sent to i;  share x[i] goes to each target

Values that have arrived may belong to any step, older or newer. If a source writes twice before the rank reads,
averaging uses the last value, and mass is added up. The mass of all ranks, including mass under way, never changes, so
push_sum still converges to the mean; plain averaging only comes close to it.

B. Ying, K. Yuan, H. Hu, Y. Chen and W. Yin, "BlueFog: Make Decentralized Algorithms Practical for Optimization and
Deep Learning", 2021 (win_put); M. Assran and M. Rabbat, "Asynchronous Gradient Push", 2021.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.comm.transport import Buffers, Comm, Work
from paceline.errors import WrongCommand
from paceline.protocols import Codec
from paceline.strategy.exchanges._works import Together
from paceline.strategy.exchanges.neighbor import Neighbor, plain_row, split_mass
from paceline.types import Chunk, Lane, Mixing, Unit, View

if TYPE_CHECKING:
    from torch import Tensor

# A rank with less mass than this gives none away: it would be divided by a number near zero.
LEAST = 0.5


@dataclass(frozen=True)
class Window(Neighbor):
    """The exchange. Its traffic is the bytes written to each rank in a step, even if they are never read."""

    name: ClassVar[str] = "window"
    asynchronous: ClassVar[bool] = True
    one_call: ClassVar[bool] = False
    mixes_once: ClassVar[bool] = False

    @property
    def weighs(self) -> str:
        return ""  # buffers are made for the neighbors of the topology

    def join(self, comm: Comm, view: View, lane: Lane) -> WindowChannel:
        return WindowChannel(comm, view, self.topology, lane)


class WindowChannel:
    """One window per chunk, made at the first start, which is collective; later starts wait for no rank."""

    def __init__(self, comm: Comm, view: View, topology: Any, lane: Lane) -> None:
        self.memory = self._comm = comm
        self._view, self._topology = view, topology
        self._mass = lane.tail == "mass"
        self._windows: dict[int, Buffers] = {}
        self._restored: dict[int, dict[int, Tensor]] = {}
        self._sources = sources_of(topology, view)
        self._weights = {source: weight for row in rows_of(topology, view) for source, weight in row.sources}

    def start(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor, codec: Codec | None) -> Work:
        if codec is not None:
            raise WrongCommand("exchange window with a compressor", why="payloads of it cannot be mixed later")
        if chunk.index not in self._windows:
            self._windows[chunk.index] = self._comm.window(src.numel(), src.dtype, self._sources, shows=False)
        move = self._give if self._mass else self._average
        return Together(move(self._windows[chunk.index], unit.step, chunk, src, dst))

    def _average(self, window: Buffers, step: int, chunk: Chunk, src: Tensor, dst: Tensor) -> list[Work]:
        row = plain_row(self._topology, self._view, step)
        works = [window.put(target, src) for target in row.targets]
        _scale(src, row.keep, dst)
        total = row.keep + sum(self._arrived(window, chunk, dst, self._weights))
        if total == 0:
            dst.copy_(src)
        elif total != 1:
            dst.div_(total)
        return works

    def _give(self, window: Buffers, step: int, chunk: Chunk, src: Tensor, dst: Tensor) -> list[Work]:
        """Write the shares of mass to the targets; the last element is the mass that started at 1."""
        row = split_mass(self._topology, self._view, step)
        gives = float(src[-1]) >= LEAST
        works = [window.accumulate(target, src, row.keep) for target in row.targets if gives]
        _scale(src, row.keep if gives else 1.0, dst)
        for _ in self._arrived(window, chunk, dst, {}):
            pass
        return works

    def _arrived(self, window: Buffers, chunk: Chunk, dst: Tensor, weights: Mapping[int, float]) -> Iterator[float]:
        """Add the weighted values that have arrived, and clear them.

        Yield the weight of each source that had written.
        """
        for source, tensor in self._restored.pop(chunk.index, {}).items():
            dst.add_(tensor.to(dst.dtype), alpha=weights.get(source, 1.0))
            yield weights.get(source, 1.0)
        for source in window.sources:
            if window.fold(source, dst, weights.get(source, 1.0), clear=True):
                yield weights.get(source, 1.0)

    def state(self) -> Mapping[str, Any]:
        """Return the values that have arrived but were not read.

        The saved values are complete only if all ranks call this after a barrier.
        """
        unread = {index: dict(slots) for index, slots in self._restored.items()}
        for index, window in self._windows.items():
            parked = unread.setdefault(index, {})
            for source, tensor in _contents(window).items():
                parked[source] = tensor + parked[source].to(tensor) if self._mass and source in parked else tensor
        return {"arrived": unread}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a state, on all ranks. Values that are still under way belong to discarded steps."""
        self._restored = {index: dict(slots) for index, slots in state.get("arrived", {}).items()}
        if self._windows:
            self._comm.barrier()
            for window in self._windows.values():
                _contents(window, clear=True)
            self._comm.barrier()


def _scale(src: Tensor, factor: float, out: Tensor) -> None:
    import torch

    torch.mul(src, factor, out=out)


def _contents(window: Buffers, clear: bool = False) -> dict[int, Tensor]:
    contents = {}
    for source in window.sources:
        copy = window.empty()
        if window.fold(source, copy, clear=clear):
            contents[source] = copy
    return contents


def rows_of(topology: Any, view: View) -> tuple[Mixing, ...]:
    """Return the mixing of this rank at each step of a period."""
    nodes = len(set(view.nodes)) or 1
    return tuple(topology.row(view.rank, view, step) for step in range(topology.period(view.size, nodes)))


def sources_of(topology: Any, view: View) -> list[list[int]]:
    """Return for each rank all ranks that it ever receives from."""
    views = [View(rank, view.size, view.nodes) for rank in range(view.size)]
    return [sorted({source for row in rows_of(topology, each) for source, _ in row.sources}) for each in views]
