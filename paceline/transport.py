"""What moves bytes, as everything above it sees it: a comm, works under way, windows and the board of rank 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from paceline.types import Mixing, Piece

if TYPE_CHECKING:
    from torch import Tensor


class Work(Protocol):
    """Something under way. Every wait has a deadline in seconds and names the rank it waited for.

    A work may say more, and whoever asks takes `done` where it does not: `landed()` only looks and moves nothing,
    `round_done()` is about the round under way of a work that has several.
    """

    def wait(self, deadline: float | None = None) -> None: ...

    def done(self) -> bool: ...


class Buffers(Protocol):
    """One-sided memory of one window: every rank owns one buffer per source, and its own value for those who get.

    Nobody but a lock is waited for. Reads and writes of one buffer never overlap, so that what lies in one buffer
    is never torn. Ranks are those of the comm.
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]

    def empty(self) -> Tensor:
        """A vector of zeros of the window's length and dtype."""

    def show(self, tensor: Tensor) -> None:
        """This is what others get from now on."""

    def put(self, target: int, tensor: Tensor, weight: float = 1.0) -> Work:
        """This rank's buffer on the target becomes weight x tensor."""

    def accumulate(self, target: int, tensor: Tensor, weight: float = 1.0) -> Work:
        """This rank's buffer on the target grows by weight x tensor."""

    def get(self, source: int, weight: float = 1.0) -> Work:
        """The buffer for a source becomes weight x what the source shows."""

    def fold(self, source: int, into: Tensor, weight: float = 1.0, *, clear: bool = False) -> bool:
        """into += weight x the buffer for a source, if anything came since it was cleared; says whether."""

    def versions(self) -> dict[int, int]:
        """How often each buffer was written since this rank last folded it."""

    def mutex(self, rank: int, deadline: float | None = None) -> AbstractContextManager[None]:
        """A lock of each rank that means what its users agree on."""

    def free(self) -> None:
        """Collective."""


class Board(Protocol):
    """Numbers that rank 0 says and the others hear, in order and apart from all collectives."""

    def say(self, value: int) -> None: ...

    def expect(self, count: int) -> None:
        """So many more will be said: those who hear may get ready for them."""

    def heard(self) -> int | None:
        """The next number, if it is there."""

    def hear(self, key: object = "", deadline: float | None = None) -> int:
        """The next number, waited for."""


class Comm(Protocol):
    """What moves bytes among ranks. Collectives are called in one order on all ranks.

    `key` says in an error what was under way; it has no other meaning.
    """

    rank: int
    size: int
    placement: tuple[int, ...]
    deadline: float  # seconds that a wait takes at most, unless it is told otherwise
    shares_results: bool  # whether allocate_result is one memory for several ranks
    service: Any  # the way to the servers of the job (comm/service.py), or None

    def allocate(self, numel: int, dtype: Any, givers: int | None = None) -> Tensor:
        """A vector of this rank whose collectives need no staging copy; only the first `givers` ranks get one of
        their own. Collective."""

    def allocate_result(self, numel: int, dtype: Any, givers: int | None = None) -> Tensor:
        """A vector for results; on shm it is one memory for all ranks of the host, so only read it. Collective."""

    def release(self, vector: Tensor) -> None:
        """Forget a vector that was allocated here; its memory goes when nobody holds it any more. Not collective."""

    def all_sum(self, src: Tensor, dst: Tensor, key: object = "") -> Work: ...

    def reduce_scatter(self, src: Tensor, dst: Tensor, key: object = "") -> Work: ...

    def sum_by(
        self,
        src: Tensor,
        dst: Tensor,
        pieces: Sequence[Piece],
        givers: int,
        key: object = "",
        combine: Callable[[Tensor, Sequence[Tensor], int], None] = ...,
    ) -> Work:
        """dst = the sum of the first `givers` ranks' src, each piece added (or combined) by its owner."""

    def all_gather(self, src: Tensor, dst: Tensor, key: object = "") -> Work: ...

    def broadcast(self, tensor: Tensor, root: int = 0, key: object = "") -> Work: ...

    def barrier(self, deadline: float | None = None) -> None: ...

    def mix(self, src: Tensor, dst: Tensor, mixing: Mixing, key: object = "") -> Work:
        """dst = keep x src + the weighted src of other ranks, who must name this rank as a target."""

    def window(self, numel: int, dtype: Any, sources: Sequence[Sequence[int]], shows: bool = True) -> Buffers:
        """One-sided memory: sources[r] may write to rank r. Without `shows` nothing can be got. Collective."""

    def split(self, groups: Sequence[Sequence[int]]) -> Comm:
        """The comm of this rank's group. Groups cover all ranks; ranks are positions in the group. Collective."""

    def board(self, length: int) -> Board:
        """Where rank 0 says what all do next; it is ahead of nobody by more than `length` numbers. Collective."""

    def progress(self) -> None:
        """Do what can be done now without waiting; a comm that progresses by itself does nothing."""

    def received(self) -> tuple[int, ...]:
        """Bytes that this rank got from each rank so far."""

    def get_ready(self) -> None:
        """Take now what would be taken on first use. Collective."""

    def excuse(self, rank: int) -> str | None:
        """Why a rank will not answer any more, where the comm can tell without waiting."""

    def close(self, failure: str = "") -> None: ...
