"""Align the clocks of ranks: the offset of each rank's clock from rank 0's, and its error.

    rank 0   enter ----------------------- exit          no rank leaves a barrier before the last one enters it, so
    rank r           enter ------------- exit            enter_r - exit_0 <= offset_r <= exit_r - enter_0

Every meeting narrows the range; the offset is its middle, and half of its width is the error that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.measure.record.figures import Clock

MEETINGS = 32
HOW = "barriers: nobody leaves before the last has entered"
Meeting = Sequence[float]


def meet(barrier: Callable[[], object], clock: Callable[[], float], count: int = MEETINGS) -> list[tuple[float, float]]:
    """Return when this rank entered and left each of `count` barriers."""
    meetings = []
    for _ in range(count):
        entered = clock()
        barrier()
        meetings.append((entered, clock()))
    return meetings


def align(meetings: Sequence[Sequence[Meeting]]) -> Clock:
    """Return how many seconds each rank's clock is ahead of rank 0's, and the largest error of these offsets."""
    ranges = [_range(meetings[0], own) if rank else (0.0, 0.0) for rank, own in enumerate(meetings)]
    return {
        "how": HOW,
        "offsets": [(low + high) / 2 for low, high in ranges],
        "within": [max(0.0, (high - low) / 2) for low, high in ranges],
    }


def _range(first: Sequence[Meeting], own: Sequence[Meeting]) -> tuple[float, float]:
    pairs = list(zip(first, own, strict=True))
    low = max(mine[0] - theirs[1] for theirs, mine in pairs)
    return low, min(mine[1] - theirs[0] for theirs, mine in pairs)
