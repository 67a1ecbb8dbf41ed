"""The traits of a membership, with the value that most memberships have; a member overrides what differs."""

from __future__ import annotations

from typing import ClassVar

from paceline.menu.menu import Member


class MembershipTraits(Member):
    """
    elastic   members may come and go between steps
    """

    elastic: ClassVar[bool] = False
