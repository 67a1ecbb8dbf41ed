"""Facts of a host: versions and limits that are compared between hosts before a job starts. Imports no torch.

The code of paceline is compared by a digest of its files, because two checkouts may have the same version number.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from paceline._version import VERSION
from paceline.cluster.environment import installed

Values = TypeVar("Values")

_ADDRESS_OF = 0x8915  # SIOCGIFADDR


@dataclass(frozen=True)
class Facts:
    """The facts of one host, as its agent reports them."""

    paceline: str = ""
    code: str = ""
    python: str = ""
    torch: str = ""
    cores: int = 0
    gpus: int = 0
    clock: float = 0.0
    open_files: int = 0
    shared_memory: int = 0
    folder: str = ""
    addresses: Mapping[str, str] | None = None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Facts:
        """Return the facts that another process sent. Unknown names are ignored."""
        return checked(cls, {name: values[name] for name in cls.__dataclass_fields__ if name in values})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def checked(kind: type[Values], values: Mapping[str, Any]) -> Values:
    """Return a dataclass of values that another process sent. Raises TypeError for a value of another type."""
    hints = get_type_hints(kind)
    for name, value in values.items():
        allowed = [get_origin(one) or one for one in (get_args(hints[name]) or (hints[name],))]
        number = float in allowed and type(value) is int
        if not number and not any(type(value) is one or (one is Mapping and type(value) is dict) for one in allowed):
            raise TypeError(f"{name} is a {type(value).__name__}")
    return kind(**values)


def facts() -> Facts:
    """Return the facts of this host."""
    import resource

    from paceline.cluster.machine import machine

    return Facts(
        paceline=VERSION,
        code=digest(Path(__file__).parents[1]),
        python=platform.python_version(),
        torch=installed("torch") or "",
        cores=len(os.sched_getaffinity(0)),
        gpus=machine().gpus,
        clock=time.time(),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        shared_memory=_shared_memory(),
        folder=os.getcwd(),
        addresses=addresses(),
    )


def differences(name: str, here: Facts, there: Facts) -> list[str]:
    """Return the differences that prevent a host from running a job of this launcher, as texts."""
    problems = []
    if there.paceline != here.paceline:
        problems.append(f"{name} has paceline {there.paceline}, this machine {here.paceline}")
    elif there.code != here.code:
        problems.append(f"{name} has other files of paceline {there.paceline} than this machine")
    if _minor(there.python) != _minor(here.python):
        problems.append(f"{name} has Python {there.python}, this machine {here.python}")
    if there.torch != here.torch:
        problems.append(f"{name} has torch {there.torch or '(none)'}, this machine {here.torch or '(none)'}")
    return problems


def digest(package: Path) -> str:
    """Return a digest of all Python files of a package."""
    sha = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sha.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()[:16]


def addresses() -> dict[str, str]:
    """Return the IPv4 address of each network interface that has one."""
    by_name = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _ADDRESS_OF, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            by_name[name] = socket.inet_ntoa(answer[20:24])
    return by_name


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _shared_memory() -> int:
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return room.f_bavail * room.f_frsize
