"""The figures of a network sweep, as nccl-tests defines them; pure arithmetic, no torch.

    algbw   bytes / seconds
    busbw   algbw x the bytes that a link carries per byte of the message; comparable with the rate of the link

The size of an all_gather or a reduce_scatter is that of the whole vector.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from paceline.comm import patterns
from paceline.comm.link import fit
from paceline.comm.patterns import Cost
from paceline.errors import WrongCommand
from paceline.types import Link

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LARGEST = 1 << 34  # bytes
SLOWER = 0.8  # share of the median bandwidth; a pair below it is flagged
LATER = 2.0  # factor of the median latency; a pair above it is flagged


def parse_size(text: str) -> int:
    """Return the bytes of 8, 4K, 128M or 1G, which count by 1,024."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(i?B)?", text.strip(), flags=re.IGNORECASE)
    nbytes = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if not 0 < nbytes <= LARGEST:
        raise WrongCommand(f"size {text}", why="it is a number of bytes up to 16G, such as 4K or 128M")
    return nbytes


def sizes_between(least: int, most: int, factor: int) -> tuple[int, ...]:
    """Return sizes from the least, each `factor` times the one before; whole float32 numbers."""
    if least > most:
        raise WrongCommand(f"sizes from {least} to {most} bytes", why="the first is larger than the last")
    if factor < 2:
        raise WrongCommand(f"--factor {factor}", why="every size is at least twice the one before", remedy="--factor 4")
    results, size = [], max(4, least)
    while size <= most:
        results.append(size - size % 4)
        size *= factor
    return tuple(results)


def bus_factor(verb: str, ranks: int) -> float:
    """Return the bytes that the busiest link carries for each byte of the message; 0 for one rank."""
    if ranks < 2:
        return 0.0
    if verb == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if verb in ("all_gather", "reduce_scatter") else 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a size of one verb on one comm."""

    comm: str
    verb: str
    nbytes: int
    ranks: int
    seconds: float
    wrong: int

    @property
    def count(self) -> int:
        return self.nbytes // 4

    @property
    def algbw(self) -> float:
        """Bytes per second."""
        return self.nbytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def busbw(self) -> float:
        """Bytes per second of the busiest link."""
        return self.algbw * bus_factor(self.verb, self.ranks)


def cost_of(verb: str, ranks: int, nbytes: int) -> Cost:
    """Return the rounds and bytes of a verb on a ring or a tree. The fit of a link uses them."""
    if verb == "all_reduce":
        return patterns.ring_cost(ranks, nbytes)
    if verb in ("all_gather", "reduce_scatter"):
        return patterns.ring_cost(ranks, nbytes, 1)
    return patterns.tree_cost(ranks, nbytes) if verb == "broadcast" else Cost(1, nbytes)


def fit_rows(rows: Sequence[Row]) -> Link | None:
    """Fit latency and bandwidth to the times of one collective at several sizes; None for one rank or one size."""
    rows = [row for row in rows if row.ranks > 1]
    if len({row.nbytes for row in rows}) < 2:
        return None
    costs = [cost_of(row.verb, row.ranks, row.nbytes) for row in rows]
    rounds = costs[0].rounds
    results = fit([cost.nbytes for cost in costs], [row.seconds for row in rows])
    return Link(results.latency / rounds, results.bandwidth)


@dataclass(frozen=True, slots=True)
class Pair:
    """The link between two ranks: one-way seconds of the smallest message, and bytes per second of the largest."""

    first: int
    second: int
    latency: float
    bandwidth: float


def slow_pairs(pairs: Sequence[Pair]) -> list[tuple[Pair, str]]:
    """Return pairs that are slower than the rest, each with the reason."""
    if len(pairs) < 3:
        return []
    usual, fastest = median(pair.latency for pair in pairs), median(pair.bandwidth for pair in pairs)
    results = []
    for pair in pairs:
        if pair.bandwidth < SLOWER * fastest:
            results.append((pair, f"{pair.bandwidth / fastest:.0%} of the median bandwidth"))
        elif pair.latency > LATER * usual:
            results.append((pair, f"{pair.latency / usual:.1f} times the median latency"))
    return results
