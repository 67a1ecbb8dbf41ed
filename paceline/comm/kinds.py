"""The abilities of each comm, for code that needs to know them before the comm is imported or connected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.comm.tcp.settings import TcpSettings
from paceline.menu.grammar import parse


@dataclass(frozen=True)
class Kind:
    """The abilities of a comm.

    memory       the memory that it moves; "any" before `auto` has selected a comm
    far          it reaches ranks on other hosts
    one_sided    ranks can write to windows of other ranks
    rounds_sums  it adds in the dtype that travels, so that a sum is rounded at every hop
    for_jobs     it joins processes; the threads of one process are for tests
    settings     the class of its settings, if it takes any
    sockets      it has sockets of paceline's own, with a buffer that the user can set
    """

    memory: Literal["host", "gpu", "any"] = "host"
    far: bool = True
    one_sided: bool = True
    rounds_sums: bool = False
    for_jobs: bool = True
    settings: type[TcpSettings] | None = None
    sockets: bool = False


KINDS = {
    "auto": Kind(memory="any"),
    "shm": Kind(far=False),
    "node": Kind(rounds_sums=True),
    "tcp": Kind(rounds_sums=True, settings=TcpSettings, sockets=True),
    "gloo": Kind(rounds_sums=True),
    "nccl": Kind(memory="gpu", one_sided=False, rounds_sums=True),
    "thread": Kind(far=False, for_jobs=False),
}


def kind_of(text: str) -> Kind:
    """Return the abilities of a comm written as text, such as `tcp(streams=2)`. An unknown name counts as `auto`."""
    return KINDS.get(parse(text).word, KINDS["auto"])
