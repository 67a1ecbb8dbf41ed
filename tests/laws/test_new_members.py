"""A new member is one file and one line of its MENU: the laws of its family find it and hold."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

COMPRESSOR = """
from dataclasses import dataclass
from typing import ClassVar

from paceline.protocols import Payload, Wire
from paceline.strategy.compressors._codec import Lossy, Rooms, Stateless


@dataclass(frozen=True)
class Rounded(Lossy):
    name: ClassVar[str] = "rounded"
    summable: ClassVar[bool] = True

    def body(self, layout, piece, size):
        return (Wire("sum", 4 * piece.numel),)

    def operator(self, layout, comm, shared, shrunk):
        return Rounding(Rooms(comm, shared))


class Rounding(Stateless):
    def __init__(self, rooms):
        self._rooms = rooms

    def rounds(self, piece, src, dst, rest):
        sent, total = self._rooms.pair(piece.start, piece.numel, src.dtype)
        sent.copy_(src.bfloat16())
        if rest is not None:
            rest.sub_(sent)
        yield Payload("sum", sent, total)
        dst.copy_(total)
"""

TOPOLOGY = """
from dataclasses import dataclass
from typing import ClassVar

from paceline.strategy.topologies._circulant import Circulant


@dataclass(frozen=True)
class Skipping(Circulant):
    name: ClassVar[str] = "skipping"

    def offsets(self, size):
        return tuple(sorted({1 % size, 2 % size} - {0}))
"""

SCHEDULE = """
from dataclasses import dataclass
from typing import ClassVar

from paceline.strategy.schedules.traits import ScheduleTraits
from paceline.types import Plan


@dataclass(frozen=True)
class Middle(ScheduleTraits):
    name: ClassVar[str] = "middle"
    cuts_tensors: ClassVar[bool] = True

    def plan(self, profile, seconds):
        numel = profile.layout.numel
        return Plan(tuple(sorted({0, numel // 2, numel})))
"""

MEMBERS = {
    "compressors": ("rounded", "Rounded", COMPRESSOR),
    "topologies": ("skipping", "Skipping", TOPOLOGY),
    "schedules": ("middle", "Middle", SCHEDULE),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", MEMBERS)
def test_the_laws_of_a_family_hold_for_a_member_that_is_one_file_and_one_line_of_the_menu(family, tmp_path):
    word, name, code = MEMBERS[family]
    (tmp_path / f"new_{word}.py").write_text(code)
    line = f'MENU.members["{word}"] = "new_{word}:{name}"'
    (tmp_path / "one_line.py").write_text(f"from paceline.strategy.{family} import MENU\n{line}\n")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    laws = [f"tests/laws/test_{family}.py", "-p", "one_line", "-p", "no:cacheprovider", "-k", word, "-q"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *laws], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count(".") >= 3, ran.stdout
