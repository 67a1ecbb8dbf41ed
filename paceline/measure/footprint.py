"""The memory of this process: its proportional share (PSS) when sampled, and the kernel's peak (RSS)."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

_ROLLUP = Path("/proc/self/smaps_rollup")
_STATUS = Path("/proc/self/status")


def pss() -> int:
    """Return the bytes of this process, with shared pages divided among their users.

    0 if the kernel does not report it.
    """
    return _read(_ROLLUP, "Pss:") or 0


def peak_rss() -> int:
    """Return the largest resident memory so far, with shared pages in full: an upper bound of every PSS.

    Without /proc it is ru_maxrss, which also counts the process that started this one.
    """
    return _read(_STATUS, "VmHWM:") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _read(path: Path, word: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(word)), None)


class PeakMemory:
    """Samples the PSS in a thread inside the with-block and keeps the largest.

    A sample takes milliseconds, so use it during warm-up. A peak between two samples is missed; `peak_rss` bounds it.
    """

    def __init__(self, every: float = 0.05) -> None:
        self.peak, self._every, self._over = 0, every, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak memory", daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            self.look()

    def look(self) -> None:
        self.peak = max(self.peak, pss())

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.look()
