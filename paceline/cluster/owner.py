"""Names that contain their owning process, to distinguish leftovers of a killed process from things in use.

    paceline-NAMESPACE-PID-BEGAN-TOKEN

A pid may be reused, so the name also holds the start time of the process, and the pid namespace in which the pid is
valid.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

_PREFIX = "paceline"


def owned_prefix() -> str:
    """Return the prefix of names that belong to this process."""
    return f"{_PREFIX}-{_namespace()}-{os.getpid()}-{_began(os.getpid())}-"


def owned_name() -> str:
    """Return a new name that belongs to this process."""
    return f"{owned_prefix()}{secrets.token_hex(3)}"


def is_abandoned(name: str) -> bool:
    """Return whether a name was made on this machine by a process that is gone."""
    words = name.split("-")
    if len(words) < 5 or words[0] != _PREFIX or not all(word.isdigit() for word in words[1:4]):
        return False
    namespace, pid, began = map(int, words[1:4])
    return namespace == _namespace() and _began(pid) != began


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _began(pid: int) -> int:
    """Return the start time of a process in clock ticks after boot, or -1 if it is gone or a zombie."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if words[0] in "ZX" else int(words[19])
