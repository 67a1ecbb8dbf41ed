"""The order in which contenders are named, on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def ranked(contenders: Iterable[T], *, rate: Callable[[T], float], beats: Callable[[T, T], bool]) -> list[T]:
    """Fastest first, but whoever is beaten by another comes after all whom nobody beats.

    A mean over rounds that others do not have may be higher for no merit; `beats` looks at what both have.
    """
    entries = list(contenders)
    return sorted(entries, key=lambda one: (any(beats(rival, one) for rival in entries), -rate(one)))
