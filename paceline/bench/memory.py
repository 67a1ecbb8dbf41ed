"""How much memory this process really takes: its proportional share (PSS), sampled while it works."""

from __future__ import annotations

import threading
from pathlib import Path

_ROLLUP = Path("/proc/self/smaps_rollup")


def pss() -> int:
    """Bytes of this process, shared pages divided among those who share them; 0 where the kernel does not tell."""
    try:
        lines = _ROLLUP.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


class PeakMemory:
    """Samples in a thread while inside; meant for warm-up steps, because looking costs milliseconds."""

    def __init__(self, every: float = 0.05) -> None:
        self.peak, self._every, self._over = 0, every, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak memory", daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            self.peak = max(self.peak, pss())

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.peak = max(self.peak, pss())
