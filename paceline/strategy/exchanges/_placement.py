"""Decide which rank of a parameter server adds which piece of a chunk.

n workers and k dedicated servers with equal bandwidth finish at the same time if they hold these shares:

    a dedicated server    2 (n-1) / (n^2 + kn - 2k)    of all bytes
    a co-located one        (n-k) / (n^2 + kn - 2k)

Each piece of a chunk goes to the rank that has the fewest bytes relative to its share. Workers and servers compute the
same placement independently, because it depends on the chunks alone.
"""

from __future__ import annotations

from itertools import pairwise

from paceline.types import Piece, spread

LARGEST = 4_096_000  # bytes of one piece
SMALLEST = 16_384  # bytes; smaller chunks are not cut, because balance is worth less than the extra messages
GRAIN = 64  # bytes: pieces are cut at cache lines


def shares(workers: int, servers: int, colocated: bool) -> tuple[float, ...]:
    """Return the share of all bytes that each rank holds, workers first."""
    n, k = workers, servers
    if not colocated or n == k == 1:
        return (0.0,) * n + (1.0 / k,) * k
    whole = n * n + k * n - 2 * k
    return ((n - k) / whole,) * n + (2 * (n - 1) / whole,) * k


class Placer:
    """Places chunks in the order in which they come; a chunk that comes again gets the same place."""

    def __init__(self, parts: tuple[float, ...]) -> None:
        self._parts = parts
        self._holders = [rank for rank, part in enumerate(parts) if part > 0]
        self.loads = [0] * len(parts)
        self._known: dict[tuple[int, int, int], tuple[Piece, ...]] = {}

    def pieces(self, chunk: int, numel: int, itemsize: int) -> tuple[Piece, ...]:
        """Return which rank adds which range of a chunk; the number of the chunk is only a name."""
        key = (chunk, numel, itemsize)
        if key not in self._known:
            self._known[key] = tuple(self._place(numel, itemsize))
        return self._known[key]

    def _place(self, numel: int, itemsize: int) -> list[Piece]:
        nbytes = numel * itemsize
        least = min(self._parts[rank] for rank in self._holders)
        limit = max(SMALLEST, min(LARGEST, int(nbytes * least / 8)))
        bounds = spread(numel, -(-nbytes // limit), grain=max(1, GRAIN // itemsize))
        placed = [Piece(self._take((b - a) * itemsize), a, b) for a, b in pairwise(bounds)]
        return [piece for piece in placed if piece.stop > piece.start]

    def _take(self, nbytes: int) -> int:
        """Return the rank with the fewest bytes relative to its share.

        On a tie the last one, because dedicated servers are last.
        """
        rank = min(reversed(self._holders), key=lambda holder: (self.loads[holder] + nbytes) / self._parts[holder])
        self.loads[rank] += nbytes
        return rank
