"""Choose which neighboring tensors travel together: in backward order, one message at a time, T(n) = a + b n.

    ready      r1     r2   r3         r4
    wfbp       [ 1 ]-[ 2 ]-[ 3 ]-----[ 4 ]        a per message
    merged     [ 1 ]------[ 2 3 ]----[ 4 ]        waits for the last of each

Ready times and sizes may be in any units, as long as a and b fit them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[Any]
EQUAL = 1e-9  # relative difference below which times count as equal, because sums in another order round differently
COLUMNS = 256


def finish(groups: Sequence[int], ready: Sequence[float], sizes: Sequence[float], a: float, b: float) -> float:
    """Return when the last message has arrived; group k ends before tensor groups[k]."""
    free, first = 0.0, 0
    for end in groups:
        free = max(free, max(ready[first:end])) + a + b * sum(sizes[first:end])
        first = end
    return free


def best(ready: Sequence[float], sizes: Sequence[float], a: float, b: float) -> list[int]:
    """Return the groups that finish first, up to one part in a billion; among these, the fewest messages.

    F[0] = 0, F[j] = min over i < j of max(F[i], r_j) + a + b (M_j - M_i): the message with tensors i+1..j can leave
    when the link is free and its last tensor is ready. F_k[j] is the same with k messages. Messages that have to wait
    for r_j anyway may be fewer and end later, so the search is for the smallest k, and not only for the smallest F of
    every prefix.
    """
    # The order of backward, even if measured times are noisy.
    at = np.maximum.accumulate(np.asarray(ready, dtype=np.float64))
    total = np.concatenate([[0.0], np.cumsum(np.asarray(sizes, dtype=np.float64))])
    first = _earliest(at, total, a, b)
    limit = first + EQUAL * abs(first)
    done = np.full(len(total), np.inf)
    done[0] = 0.0
    cuts: list[Vector] = []  # cuts[k - 1][j] is where the last of k messages begins
    while done[-1] > limit:
        done, cut = _one_more(done, at, total, a, b)
        cuts.append(cut)
    groups = [len(sizes)]
    for cut in cuts[:0:-1]:
        groups.append(int(cut[groups[-1]]))
    return groups[::-1]


def _earliest(at: Vector, total: Vector, a: float, b: float) -> float:
    """Return when the last message can arrive at the earliest, with any number of messages."""
    done = np.zeros(len(total))
    for j in range(1, len(total)):
        done[j] = np.min(np.maximum(done[:j], at[j - 1]) + (a + b * (total[j] - total[:j])))
    return float(done[-1])


def _one_more(before: Vector, at: Vector, total: Vector, a: float, b: float) -> tuple[Vector, Vector]:
    """Return the earliest ends of all prefixes with one more message, and where that message begins.

    Works on blocks of columns.
    """
    done, cut = np.full(len(total), np.inf), np.zeros(len(total), dtype=np.int64)
    for start in range(1, len(total), COLUMNS):
        ends = np.arange(start, min(start + COLUMNS, len(total)))
        begins = np.arange(ends[-1])[:, None]
        costs = np.maximum(before[begins], at[ends - 1]) + (a + b * (total[ends] - total[begins]))
        costs[begins >= ends] = np.inf
        cut[ends] = np.argmin(costs, axis=0)
        done[ends] = costs[cut[ends], np.arange(len(ends))]
    return done, cut


def greedy(ready: Sequence[float], sizes: Sequence[float], a: float, b: float) -> list[int]:
    """Merge by the published rule: a message takes the next tensor if it is ready within `a` seconds."""
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
