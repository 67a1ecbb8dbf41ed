"""Where the time of forward and backward comes from: the network itself, or waits after a profile of it.

--compute real
--compute 'replay(profile.json, scale=2)'     twice the profiled times
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paceline.bench.profile import StepProfile, read
from paceline.errors import BadMember
from paceline.menu import Member, Menu

MENU = Menu("compute", {"real": "paceline.bench.compute:Real", "replay": "paceline.bench.compute:Replay"})


@dataclass(frozen=True)
class Real(Member):
    name: ClassVar[str] = "real"
    kind: ClassVar[str] = "measured"


@dataclass(frozen=True)
class Replay(Member):
    """`file` is a profile, or a record, which holds one. `scale` multiplies its times."""

    name: ClassVar[str] = "replay"
    kind: ClassVar[str] = "replayed"

    file: str
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.scale < float("inf"):
            raise BadMember(f"replay(scale={self.scale:g})", why="scale multiplies times: 0 or more")

    def profile(self) -> StepProfile:
        return read(Path(self.file))
