"""In which order cells of a round run: drawn by lot, but what is compared runs one after the other.

    round 1    [ c a b ] [ z y x ]      round 2    [ y x z ] [ b c a ]

A machine that others use is fast for some minutes and then slow for some: what runs side by side meets the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")


def in_turns(cells: Iterable[T], compared: Callable[[T], Hashable], seed: str) -> list[T]:
    """Cells with the same `compared` stay together; groups, and cells inside them, are in an order drawn anew."""
    dice = random.Random(seed)
    groups: dict[Hashable, list[T]] = {}
    for cell in cells:
        groups.setdefault(compared(cell), []).append(cell)
    order = list(groups.values())
    dice.shuffle(order)
    for group in order:
        dice.shuffle(group)
    return [cell for group in order for cell in group]
