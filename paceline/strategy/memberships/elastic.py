"""Members may die, stall, leave and join between steps; a step counts for all members or for none.

elastic(min=1, max=8, shards=8)            sums in rank order
elastic(deterministic=true)                sums in a fixed tree over shards: bits do not depend on the members
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.errors import BadMember
from paceline.strategy.memberships.traits import MembershipTraits

MOST_SHARDS = 4096


@dataclass(frozen=True)
class Elastic(MembershipTraits):
    min: int = 1
    max: int = 8
    shards: int = 8
    deterministic: bool = False

    name: ClassVar[str] = "elastic"
    elastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise BadMember(f"{self}", why="min is at least 1 and at most max", remedy="elastic(min=1, max=8)")
        if not self.max <= self.shards <= MOST_SHARDS:
            raise BadMember(
                f"{self}",
                why=f"every member computes at least one shard, and there are at most {MOST_SHARDS:,}",
                remedy=f"elastic(max={self.max}, shards={self.max})",
            )

    def join(self, comm: Any) -> Any:
        """Return the presence that `paceline.join` has made, which is already connected."""
        return comm
