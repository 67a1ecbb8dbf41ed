"""The interface of a transport: comms, works in progress, windows and the Board of rank 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from paceline.types import Mixing, Piece

if TYPE_CHECKING:
    from torch import Tensor


class Work(Protocol):
    """An operation in progress. Every wait has a deadline in seconds. The error names the late rank, if it is known."""

    def wait(self, deadline: float | None = None) -> None: ...

    def done(self) -> bool: ...

    def landed(self) -> bool:
        """Return whether it is done, without advancing any operation."""
        return self.done()

    def round_done(self) -> bool:
        """Return whether the current round is done. A work of several rounds may have more rounds to come."""
        return self.done()

    def advance(self, limit: float = math.inf) -> float:
        """Start later rounds that can start now, at most `limit` in all. Return how many were started so far.

        A work whose rounds are all done returns infinity; a work without rounds returns `limit`.
        """
        return limit


class PrivateMemory(Protocol):
    """A private mapping of a result. Writes of this rank are not seen by others, and stay until they are dropped."""

    vector: Tensor

    def written(self) -> bool:
        """Return whether this rank has written to it since the last drop."""

    def drop(self) -> None:
        """Discard what this rank has written, so that `vector` shows the shared values again."""

    def works(self) -> bool:
        """Return whether `written` works on this machine. Call it before the mapping is used."""


class Buffers(Protocol):
    """The memory of one window. Every rank owns one buffer per source, and one value that other ranks can get.

    Ranks only wait for locks, not for calls of other ranks. Reads and writes of a buffer never overlap: a reader never
    sees half a write. Ranks are numbered as in the comm.
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]

    def empty(self) -> Tensor:
        """Return a vector of zeros of the window's length and dtype."""

    def show(self, tensor: Tensor) -> None:
        """Set the value of this rank that `get` on other ranks returns from now on."""

    def put(self, target: int, tensor: Tensor, weight: float = 1.0) -> Work:
        """Set this rank's buffer on the target to weight * tensor."""

    def accumulate(self, target: int, tensor: Tensor, weight: float = 1.0) -> Work:
        """Add weight * tensor to this rank's buffer on the target."""

    def get(self, source: int, weight: float = 1.0) -> Work:
        """Set this rank's buffer for a source to weight * the value that the source has set with `show`."""

    def fold(self, source: int, into: Tensor, weight: float = 1.0, *, clear: bool = False) -> bool:
        """Add weight * the buffer of a source to `into`. Return whether it was written since it was last cleared."""

    def versions(self) -> dict[int, int]:
        """Return how often each buffer was written since this rank last folded it."""

    def mutex(self, rank: int, deadline: float | None = None) -> AbstractContextManager[None]:
        """Hold the lock of a rank inside the with-block. Callers decide what the lock protects."""

    def free(self) -> None:
        """Release the window. Collective."""


class Board(Protocol):
    """A channel for numbers: rank 0 announces them (`say`) and the other ranks read them in order (`hear`).

    It is independent of the order of collectives.
    """

    def say(self, value: int) -> None: ...

    def expect(self, count: int) -> None:
        """Tell this reader that `count` more numbers will come, so that it can prepare to receive them."""

    def heard(self) -> int | None:
        """Return the next number if it has arrived, else None."""

    def hear(self, key: object = "", deadline: float | None = None) -> int:
        """Wait for the next number and return it."""

    def free(self) -> None:
        """Give the board back. It must not be used any more."""


class Comm(Protocol):
    """A transport among ranks. All ranks call collectives in the same order.

    `key` names the operation in error messages; it has no other meaning.
    """

    rank: int
    size: int
    placement: tuple[int, ...]
    deadline: float  # default time limit of a wait, in seconds
    shares_results: bool  # whether several ranks share the memory of allocate_result
    segment: int = 0  # bytes of the longest range that sum_by combines at once; 0 stands for a whole piece
    names_ranks: bool  # whether errors of a wait name the rank that it waited for
    service: Any  # the job's servers (comm/service.py), or None
    engines: int  # vectors that engines have exchanged over this comm so far, in order of creation

    def check_process(self) -> None:
        """Raise WrongCommand in a forked child of the process that joined. The child must not use the comm."""

    def agree(self, verb: str, length: str = "", key: object = "") -> Work:
        """Start to compare a call with those of the other ranks. wait() raises CallMismatch if they differ.

        A comm that compares every call anyway returns a finished work.
        """

    def allocate(self, numel: int, dtype: Any, givers: int | None = None) -> Tensor:
        """Allocate a vector that collectives use without a staging copy. Collective.

        With `givers`, only ranks below that number get a vector of their own.
        """

    def allocate_result(self, numel: int, dtype: Any, givers: int | None = None) -> Tensor:
        """Allocate a vector for results. On shm all ranks share its memory, so callers only read it. Collective."""

    def private_view(self, result: Tensor) -> PrivateMemory | None:
        """Return a second, private mapping of a result that only this rank sees, or None if the comm has none."""

    def release(self, vector: Tensor) -> None:
        """Forget a vector that was allocated here. Its memory is freed with the last reference. Not collective."""

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
        """Start dst = the sum of the first `givers` ranks' src. The owner of each piece applies `combine` to it."""

    def all_gather(self, src: Tensor, dst: Tensor, key: object = "") -> Work: ...

    def broadcast(self, tensor: Tensor, root: int = 0, key: object = "") -> Work: ...

    def barrier(self, deadline: float | None = None) -> None: ...

    def mix(self, src: Tensor, dst: Tensor, mixing: Mixing, key: object = "") -> Work:
        """Start dst = keep * src + the weighted src of the sources. The sources must name this rank as a target."""

    def window(self, numel: int, dtype: Any, sources: Sequence[Sequence[int]], shows: bool = True) -> Buffers:
        """Create memory on every rank r that the ranks in sources[r] may write to. `get` needs `shows`. Collective."""

    def split(self, groups: Sequence[Sequence[int]]) -> Comm:
        """Return the comm of this rank's group. Every rank is in one group; its rank is its position there. Collective.

        Calls of the group and calls of the whole comm may come in different relative orders on different ranks.
        """

    def board(self, length: int) -> Board:
        """Create a Board on which rank 0 announces numbers. Collective.

        Rank 0 may be at most `length` numbers ahead of the slowest reader.
        """

    def progress(self) -> None:
        """Advance operations without waiting. Does nothing on a comm with background threads."""

    def received(self) -> tuple[int, ...]:
        """Return the bytes received so far from each rank."""

    def get_ready(self) -> None:
        """Allocate all memory now that would otherwise be allocated on first use. Collective."""

    def why_lost(self, rank: int) -> str | None:
        """Return why a rank will not answer any more. None means that it may answer, or that the comm cannot tell."""

    def close(self, failure: str = "") -> None: ...
