"""Where ranks first find each other: a few short texts under names.

Under our launcher it is a folder that only the user can enter, so there is no port and no secret. Under
torchrun it is the store that torchrun itself offers.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Protocol

from paceline.errors import PeerLost


class Store(Protocol):
    def set(self, name: str, text: str) -> None: ...

    def get(self, name: str, seconds: float) -> str:
        """Wait for a name to appear."""


class FolderStore:
    """One file per turn and name, moved into place so that a reader sees all of it or nothing."""

    def __init__(self, folder: Path, turn: int = 0) -> None:
        self._folder, self._turn = folder, turn

    def _place(self, name: str) -> Path:
        return self._folder / f"{self._turn}.{name.replace('/', '.')}"

    def set(self, name: str, text: str) -> None:
        place = self._place(name)
        fresh = place.with_name(f".{place.name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.replace(place)

    def get(self, name: str, seconds: float) -> str:
        place = self._place(name)
        limit, pause = time.monotonic() + seconds, 0.0005
        while not place.exists():
            if time.monotonic() > limit:
                raise PeerLost(f"no rank announced {name!r} within {seconds:.0f} s")
            time.sleep(pause)
            pause = min(0.01, 1.5 * pause)
        return place.read_text()


class MemoryStore:
    """For ranks that are threads of one process, and for one rank alone."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def set(self, name: str, text: str) -> None:
        self._texts[name] = text

    def get(self, name: str, seconds: float) -> str:
        limit = time.monotonic() + seconds
        while name not in self._texts:
            if time.monotonic() > limit:
                raise PeerLost(f"no rank announced {name!r} within {seconds:.0f} s")
            time.sleep(0.001)
        return self._texts[name]
