"""What all members of a job have in common: how their data travels, their virtual shards, and the samples they deal.

The first member sets it. Others are refused, and told why: they would wait for ever, or train other samples.
"""

from __future__ import annotations

from paceline.elastic.frames import BrokenFrame, Message, count_in, word_in
from paceline.elastic.protocol import Registry

MOST_SHARDS = 1 << 16


class Terms:
    """The terms of one job, as far as its members have named them to this coordinator."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._data = ""  # in the words of members

    def check(self, hello: Message) -> None:
        """Raise BrokenFrame for the greeting of a member that does not fit the others."""
        rule = self._registry.rule
        if hello.get("rule", rule) != rule:
            raise BrokenFrame(f"a member whose data travels over {hello['rule']}, in a job of {rule}")
        self._check_shards(count_in({"shards": 0, **hello}, "shards"))
        if "data" in hello:
            self._check_data(word_in(hello, "data"), word_in(hello, "member"))

    def _check_shards(self, shards: int) -> None:
        if shards > MOST_SHARDS:
            raise BrokenFrame(f"a member with {shards} shards")
        known = self._registry.shards = self._registry.shards or shards
        if shards and shards != known:
            raise BrokenFrame(f"a member that cuts a global batch into {shards} shards, in a job of {known}")

    def _check_data(self, data: str, member: str) -> None:
        """After a restart of the coordinator, only a member of the group sets it, not a worker that joins."""
        group = self._registry.group
        if not self._data and (group is None or member in group.members):
            self._data = data
        if self._data not in ("", data):
            raise BrokenFrame(f"it would train {data}, and the others train {self._data}")
