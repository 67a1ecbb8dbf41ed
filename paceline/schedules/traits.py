"""What most schedules are; a member says where it differs."""

from __future__ import annotations

from typing import ClassVar

from paceline.menu import Member


class Traits(Member):
    """
    crosses_step   parameters of a step may still be under way while the next forward runs
    decouples      asks the exchange for two phases: reduce-scatter, then all-gather
    measures       plans with layer times and a link, which are measured in the first steps
    cuts_tensors   a cut may lie inside a tensor
    one_chunk      everything travels as one chunk
    """

    crosses_step: ClassVar[bool] = False
    decouples: ClassVar[bool] = False
    measures: ClassVar[bool] = False
    cuts_tensors: ClassVar[bool] = False
    one_chunk: ClassVar[bool] = False

    @property
    def credit_bytes(self) -> int:
        """Bytes that may be under way at once, where the order is decided as chunks leave."""
        return 0
