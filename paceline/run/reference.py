"""Traits of the references, which strategies race against and which are not made of axes.

`train/references/` has the classes that train with them. All other rooms decide by these traits, never by a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ReferenceTraits:
    """Describes a reference. str() gives its name."""

    name: str
    is_bound: bool = False  # exchanges nothing: an upper bound that never wins
    comm_on_cpu: str | None = None  # the comm that it needs on CPUs, unless the user names one
    waits_in_backward: bool = False  # the time that it waits is part of backward and cannot be separated
    counts_buckets: bool = False  # its bytes are known only if the record has its buckets; older records have none

    def __str__(self) -> str:
        return self.name


LIMIT = ReferenceTraits("limit", is_bound=True)
DDP = ReferenceTraits("ddp", comm_on_cpu="gloo", waits_in_backward=True, counts_buckets=True)

REFERENCES: Mapping[str, ReferenceTraits] = {one.name: one for one in (LIMIT, DDP)}  # in the order of tables
COMPARED = (DDP, LIMIT)  # the references that tables give ratios to, in the order of their columns


def is_bound(strategy: str | None) -> bool:
    """Return whether this is the name of a reference that bounds the strategies and never wins."""
    return strategy is not None and strategy in REFERENCES and REFERENCES[strategy].is_bound
