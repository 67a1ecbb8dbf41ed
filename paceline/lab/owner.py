"""Names that say whose they are, so that what a killed process left can be told from what is in use.

    paceline-NAMESPACE-PID-BEGAN-TOKEN

A pid alone may be another process's by now, so it stands with the time at which its process began; and it means
something only in its own pid namespace.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

_PREFIX = "paceline"


def owned_prefix() -> str:
    """How names begin that belong to this process."""
    return f"{_PREFIX}-{_namespace()}-{os.getpid()}-{_began(os.getpid())}-"


def owned_name() -> str:
    """A fresh name that belongs to this process."""
    return f"{owned_prefix()}{secrets.token_hex(3)}"


def is_abandoned(name: str) -> bool:
    """Whether a name was made here, by a process that is gone."""
    words = name.split("-")
    if len(words) < 5 or words[0] != _PREFIX or not all(word.isdigit() for word in words[1:4]):
        return False
    namespace, pid, began = map(int, words[1:4])
    return namespace == _namespace() and _began(pid) != began


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _began(pid: int) -> int:
    """Clock ticks after boot at which a process began; -1 if there is none. A zombie is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if words[0] in "ZX" else int(words[19])
