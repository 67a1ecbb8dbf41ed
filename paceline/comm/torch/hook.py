"""The comm hook that stock DDP calls with one bucket of gradients after another.

DDP inspects the annotations, so they must not be strings: no `from __future__ import annotations` here.
"""

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future


def exchange_bucket(state: Any, bucket: dist.GradBucket) -> Future[Tensor]:
    """Replace a bucket by its mean over ranks. The returned future is complete when the hook returns."""
    buffer = bucket.buffer()
    state.exchange(bucket.index(), bucket.parameters(), buffer)
    future: Future[Tensor] = Future()
    future.set_result(buffer)
    return future
