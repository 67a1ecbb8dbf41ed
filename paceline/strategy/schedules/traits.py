"""The traits of a schedule, with the value that most schedules have; a member overrides what differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from paceline.menu.menu import Member

if TYPE_CHECKING:
    from paceline.protocols import Schedule


class ScheduleTraits(Member):
    """
    decouples   asks the exchange for two phases: reduce-scatter, then all-gather
    measures    plans with layer times and a link, which are measured in the first steps
    one_chunk   everything travels as one chunk
    """

    decouples: ClassVar[bool] = False
    measures: ClassVar[bool] = False
    one_chunk: ClassVar[bool] = False

    @property
    def crosses_step(self) -> bool:
        """Return whether parameters of a step may still be under way while the next forward runs."""
        return False

    @property
    def cuts_tensors(self) -> bool:
        """Return whether a cut may lie inside a tensor."""
        return False

    @property
    def credit_bytes(self) -> int:
        """Return the bytes that may be under way at once, if rank 0 picks the order during the step."""
        return 0

    def candidates(self) -> Sequence[Schedule]:
        """Return schedules to try for a few steps each; empty if there is nothing to try."""
        return ()
