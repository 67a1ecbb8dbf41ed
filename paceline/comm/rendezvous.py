"""Stores of named short texts, through which ranks exchange their addresses at the start.

Under paceline's launcher the store is a folder that only the user can enter, so it needs no port and no secret.
Under torchrun it is torchrun's own store.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Protocol

from paceline.errors import PeerLost


class TextStore(Protocol):
    def set(self, name: str, text: str) -> None: ...

    def get(self, name: str, seconds: float) -> str:
        """Wait until a name is set, and return its text. Raises PeerLost after `seconds`."""

    def claim(self, name: str, text: str) -> str:
        """Set a name unless it is set already. Return the text that it holds afterwards."""

    def look(self, name: str) -> str | None:
        """Return the text of a name without waiting, or None if it is not set."""


class TurnStore:
    """A view of a store that only has the names of one turn, so that names of an earlier join() are not seen."""

    def __init__(self, store: TextStore, turn: int) -> None:
        self._store, self._turn = store, turn

    @property
    def turn(self) -> int:
        return self._turn

    def set(self, name: str, text: str) -> None:
        self._store.set(f"{self._turn}/{name}", text)

    def get(self, name: str, seconds: float) -> str:
        return self._store.get(f"{self._turn}/{name}", seconds)

    def claim(self, name: str, text: str) -> str:
        return self._store.claim(f"{self._turn}/{name}", text)

    def look(self, name: str) -> str | None:
        return self._store.look(f"{self._turn}/{name}")


class FolderStore:
    """A store with one file per name. Files are moved into place, so that a reader never sees half of one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _place(self, name: str) -> Path:
        return self._folder / name.replace("/", ".")

    def _written(self, place: Path, text: str) -> Path:
        fresh = place.with_name(f".{place.name}.{os.getpid()}.{threading.get_ident()}")
        fresh.write_text(text)
        return fresh

    def set(self, name: str, text: str) -> None:
        place = self._place(name)
        self._written(place, text).replace(place)

    def claim(self, name: str, text: str) -> str:
        place = self._place(name)
        fresh = self._written(place, text)
        try:
            os.link(fresh, place)
        except FileExistsError:
            return place.read_text()
        finally:
            fresh.unlink()
        return text

    def look(self, name: str) -> str | None:
        try:
            return self._place(name).read_text()
        except FileNotFoundError:
            return None

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
    """A store for ranks that are threads of one process, and for a single rank."""

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

    def claim(self, name: str, text: str) -> str:
        return self._texts.setdefault(name, text)

    def look(self, name: str) -> str | None:
        return self._texts.get(name)
