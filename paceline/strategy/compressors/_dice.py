"""Random numbers for a compressor, which leave the global state of torch and numpy unchanged.

The state is plain numbers, so that a checkpoint can hold it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.strategy.compressors._bits import Array


class Dice:
    """A stream of random numbers for one rank. With rank None, the stream is the same on all ranks.

    All ranks encode chunks in the same order, so a common stream stays equal.
    """

    def __init__(self, seed: int, rank: int | None) -> None:
        self._seeds = [seed] if rank is None else [seed, 1 + rank]
        self._generator = np.random.Generator(np.random.PCG64(self._seeds))

    def fractions(self, out: Array) -> Array:
        """Fill a vector with numbers in [0, 1)."""
        return self._generator.random(out=out, dtype=np.float32)

    def below(self, limit: int, count: int) -> Array:
        return self._generator.integers(0, limit, count, dtype=np.uint32)

    def choose(self, numel: int, count: int) -> Array:
        """Return `count` different positions below `numel`, in rising order."""
        return np.sort(self._generator.choice(numel, count, replace=False, shuffle=False))

    def state(self) -> Mapping[str, Any]:
        return {"dice": dict(self._generator.bit_generator.state)}

    def restore(self, state: Mapping[str, Any]) -> None:
        fresh = np.random.PCG64(self._seeds).state
        self._generator.bit_generator.state = state.get("dice", fresh)
