"""Replayed compute: wait as long as a profile says.

replay(profile.json, scale=2)    a measured profile, with doubled times
replay(resnet50, step=0.3)       a listed model whose step takes 0.3 s, divided among layers by their FLOPs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paceline.errors import BadMember, WrongCommand
from paceline.menu.menu import Member
from paceline.types import Workload
from paceline.workload.by_flops import of_flops
from paceline.workload.profile import StepProfile, read


@dataclass(frozen=True)
class Replay(Member):
    """Replay the profile in `file`, which may also be a record; `scale` multiplies its times.

    With `step`, the seconds of one step, `file` is the name of a listed model instead.
    """

    name: ClassVar[str] = "replay"
    kind: ClassVar[str] = "replayed"

    file: str
    scale: float = 1.0
    step: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.scale < float("inf"):
            raise BadMember(f"replay(scale={self.scale:g})", why="scale multiplies times: 0 or more")
        if not 0 <= self.step < float("inf"):
            raise BadMember(f"replay(step={self.step:g})", why="step is the seconds of one step")

    def profile(self) -> StepProfile:
        return of_flops(self.file, self.step, batch=0) if self.step else read(Path(self.file))

    def workload(self, rank: int) -> Workload | None:
        """Return a model that waits as long as the profile says."""
        from paceline.workload.replayed import replayed

        return replayed(self.profile(), scale=self.scale, rank=rank)

    def problems(self, *, model: str, batch_size: int, plain: bool) -> Iterator[WrongCommand]:
        """Yield the reasons why a run does not match the profile; `plain` means fp32 and not compiled."""
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
