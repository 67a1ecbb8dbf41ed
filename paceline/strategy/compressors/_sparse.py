"""The format of sparse payloads: 4 bytes per index and 4 per value, in chunks of at most 2^31 elements.

| i0 i1 ... | v0 v1 ... |
"""

from __future__ import annotations

import numpy as np

from paceline.errors import WorkloadError
from paceline.strategy.compressors._bits import Array
from paceline.strategy.compressors._gathered import joined, typed

EACH = 8  # bytes of one index and one value
MOST = 1 << 31  # most elements that an index of 4 bytes can address


def pack(where: Array, values: Array, numel: int) -> Array:
    """Pack indices and values of some of the `numel` elements of a chunk."""
    if numel > MOST:
        raise WorkloadError(
            f"a chunk of {numel:,} elements",
            why=f"elements travel with an index of 4 bytes, which tells {MOST:,} apart",
            remedy="--schedule 'fusion(mb=25)'; where one tensor has that many, --schedule priority",
        )
    return joined(where.astype(np.int32), values)


def unpack(code: Array) -> tuple[Array, Array]:
    count = code.size // EACH
    return typed(code, 0, count, np.int32), typed(code, 4 * count, count, np.float32)
