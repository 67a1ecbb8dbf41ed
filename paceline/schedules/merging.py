"""Which neighbors travel together: tensors in backward order, one message at a time, T(n) = a + b n.

    ready      r1     r2   r3         r4
    wfbp       [ 1 ]-[ 2 ]-[ 3 ]-----[ 4 ]        a per message
    merged     [ 1 ]------[ 2 3 ]----[ 4 ]        waits for the last of each

Ready times and sizes may be in any units, as long as a and b fit them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def finish(groups: Sequence[int], ready: Sequence[float], sizes: Sequence[float], a: float, b: float) -> float:
    """When the last message is there; group k ends before tensor groups[k]."""
    free, first = 0.0, 0
    for end in groups:
        free = max(free, max(ready[first:end])) + a + b * sum(sizes[first:end])
        first = end
    return free


def best(ready: Sequence[float], sizes: Sequence[float], a: float, b: float) -> list[int]:
    """The groups that finish first, fewest messages among equals.

    F[0] = 0, F[j] = min over i < j of max(F[i], r_j) + a + b (M_j - M_i): the link is free for tensors i+1..j when
    those before are through, and they can leave when the last of them is ready.
    """
    count = len(sizes)
    at = np.maximum.accumulate(np.asarray(ready, dtype=np.float64))  # backward order, whatever noise measured
    total = np.concatenate([[0.0], np.cumsum(np.asarray(sizes, dtype=np.float64))])
    done, cut = np.zeros(count + 1), np.zeros(count + 1, dtype=np.int64)
    for j in range(1, count + 1):
        costs = np.maximum(done[:j], at[j - 1]) + (a + b * (total[j] - total[:j]))
        cut[j] = int(np.argmin(costs))
        done[j] = costs[cut[j]]
    groups = [count]
    while cut[groups[-1]] > 0:
        groups.append(int(cut[groups[-1]]))
    return groups[::-1]


def greedy(ready: Sequence[float], sizes: Sequence[float], a: float, b: float) -> list[int]:
    """The published rule: take the next tensor along if it is ready before this message is `a` seconds old."""
    groups: list[int] = []
    free, nbytes = 0.0, 0.0
    for k, size in enumerate(sizes):
        nbytes += size
        start = max(free, ready[k])
        if k + 1 < len(sizes) and ready[k + 1] < start + a:
            continue
        groups.append(k + 1)
        free, nbytes = start + a + b * nbytes, 0.0
    return groups
