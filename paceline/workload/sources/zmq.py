"""Batches that another program sends through a ZeroMQ pipe: `paceline data produce`, or your own producer.

zmq(tcp://127.0.0.1:5555)      every worker connects; a batch goes to the worker that has room
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.errors import BadMember, WrongCommand
from paceline.menu.menu import Member
from paceline.types import View
from paceline.workload.stream.pipe import TOKEN, Pull, check_address


@dataclass(frozen=True)
class Zmq(Member):
    name: ClassVar[str] = "zmq"
    kind: ClassVar[str] = "stream"

    address: str
    timeout: float = 120.0

    def __post_init__(self) -> None:
        check_address(self.address)
        if not self.timeout > 0:
            raise BadMember(f"{self}", why="timeout is above 0 seconds")

    @property
    def constant(self) -> bool:
        return False

    @property
    def inner(self) -> None:
        """Return None, because the producer's source is not known here."""

    def fit(self) -> dict[str, int]:
        """Return no settings: the model must accept the batches of the producer."""
        return {}

    def tests(self) -> None:
        """Return None: there are no test samples."""

    def open(self, view: View, settings: Mapping[str, Any]) -> Pull:
        token = os.environ.get(TOKEN)
        if not token:
            raise WrongCommand(f"source {self}", why=f"{TOKEN} is not set", remedy="the line that the producer prints")
        return Pull(self.address, token, self.timeout)
