"""Protocols for the engine of a lane as rules use it: rules must not import engines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from paceline.types import Chunk, Layout

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.comm.transport import PrivateMemory
    from paceline.protocols import Channel


class LaneArena(Protocol):
    """All tensors of one dtype as one vector: the values that leave this rank, and the result."""

    @property
    def dtype(self) -> Any: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def shared(self) -> bool: ...

    @property
    def source(self) -> Tensor: ...

    @property
    def tail(self) -> Tensor: ...

    @property
    def result(self) -> Tensor: ...

    @property
    def result_views(self) -> Sequence[Tensor]: ...

    @property
    def private(self) -> PrivateMemory | None: ...

    @property
    def private_views(self) -> Sequence[Tensor]: ...

    @property
    def mean(self) -> Tensor: ...

    def counts(self) -> list[float]: ...

    def views(self, vector: Tensor) -> list[Tensor]: ...


class LaneEngine(Protocol):
    """An engine that takes slots, sends units, and has the results after `finish`."""

    keeps_step: bool

    def carried(self, tensor: Tensor) -> Any: ...

    @property
    def order(self) -> Sequence[int]: ...

    @property
    def arenas(self) -> Sequence[LaneArena]: ...

    @property
    def arrived(self) -> Collection[int]: ...

    @property
    def chunks(self) -> Sequence[Chunk]: ...

    @property
    def channel(self) -> Channel: ...

    @property
    def names(self) -> list[str]: ...

    def begin(self, step: int) -> None: ...

    def name_of(self, slot: int) -> str: ...

    def source(self, slot: int) -> Tensor: ...

    def glance(self) -> float: ...

    def offer(self, slot: int, since: float = 0.0) -> None: ...

    def advance(self) -> None: ...

    def holds(self, slot: int, count: float) -> bool: ...

    def missing(self) -> list[int]: ...

    def finish(self) -> None: ...

    def adopt_order(self) -> None: ...

    def adopt_names(self, names: Sequence[str]) -> bool: ...


class CrossingLaneEngine(LaneEngine, Protocol):
    """An engine whose units may come back as late as the next forward needs them."""

    @property
    def crossing(self) -> bool: ...

    def place(self, slot: int) -> tuple[LaneArena, int]: ...

    def need(self, slots: Iterable[int]) -> None: ...

    def close(self) -> None: ...


class LaneGates(Protocol):
    """The places where forward stops until parameters have arrived."""

    def learned(self) -> None: ...

    def close(self) -> None: ...
