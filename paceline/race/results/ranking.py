"""The order in which contenders are named, on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def ranked(contenders: Iterable[T], *, rate: Callable[[T], float], beats: Callable[[T, T], bool]) -> list[T]:
    """Sort by rate, but rank everyone who loses a paired comparison below everyone unbeaten.

    A contender may have a higher mean only because of rounds that others lack; `beats` compares common rounds.
    """
    entries = list(contenders)
    return sorted(entries, key=lambda one: (any(beats(rival, one) for rival in entries), -rate(one)))
