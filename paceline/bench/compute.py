"""Where the time of forward and backward comes from: the network itself, or waits after a profile of it.

--compute real
--compute 'replay(profile.json, scale=2)'     twice the profiled times
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paceline.bench.profile import StepProfile, read
from paceline.errors import BadMember, WrongCommand
from paceline.menu import Member, Menu

MENU = Menu("compute", {"real": "paceline.bench.compute:Real", "replay": "paceline.bench.compute:Replay"})


@dataclass(frozen=True)
class Real(Member):
    name: ClassVar[str] = "real"
    kind: ClassVar[str] = "measured"

    def problems(self, *, model: str, batch_size: int, plain: bool) -> Iterator[WrongCommand]:
        """Whatever the model is, it is computed."""
        yield from ()


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

    def problems(self, *, model: str, batch_size: int, plain: bool) -> Iterator[WrongCommand]:
        """What is asked for must be what was profiled; `plain` means fp32 and not compiled."""
        try:
            profile = self.profile()
        except WrongCommand as problem:
            yield problem
            return
        if profile.model and profile.model != model:
            yield WrongCommand(
                f"--model {model} with --compute {self}",
                why=f"the profile is of {profile.model}",
                remedy=f"--model {profile.model}",
            )
        if profile.batch_size and profile.batch_size != batch_size:
            yield WrongCommand(
                f"--batch-size {batch_size} with --compute {self}",
                why=f"the profile was measured with {profile.batch_size} samples",
                remedy=f"--batch-size {profile.batch_size}",
            )
        if not plain:
            yield WrongCommand(
                f"--compile or --precision with --compute {self}", why="nothing is computed", remedy="--compute real"
            )
