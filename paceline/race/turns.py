"""The order of cells in a round: random, but cells that are compared run one after the other.

    round 1    [ c a b ] [ z y x ]      round 2    [ y x z ] [ b c a ]

A shared machine is fast for some minutes and slow for others; cells that run close together see the same speed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")


def in_turns(cells: Iterable[T], compared: Callable[[T], Hashable], seed: str) -> list[T]:
    """Shuffle groups of cells, and the cells inside each; cells with the same `compared` form a group."""
    dice = random.Random(seed)
    groups: dict[Hashable, list[T]] = {}
    for cell in cells:
        groups.setdefault(compared(cell), []).append(cell)
    order = list(groups.values())
    dice.shuffle(order)
    for group in order:
        dice.shuffle(group)
    return [cell for group in order for cell in group]
