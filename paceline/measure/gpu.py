"""The use of a GPU while steps run, sampled with nvidia-smi. It has not been run on a GPU yet."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from statistics import fmean

Ask = Callable[[int], str]


def query_smi(index: int) -> str:
    """Return the answer of nvidia-smi about one GPU: "utilization, memory used in MiB"."""
    query = ["nvidia-smi", f"--id={index}", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
    return subprocess.run(query, capture_output=True, text=True, timeout=5, check=False).stdout


def understood(answer: str) -> tuple[float, int] | None:
    """Return the share of time that the GPU was busy and its bytes in use, or None if the answer has another form."""
    words = [word.strip() for word in answer.strip().split(",")]
    try:
        return float(words[0]) / 100, int(words[1]) << 20
    except (ValueError, IndexError):
        return None


class GpuUse:
    """Samples a GPU in a thread inside the with-block; does nothing without nvidia-smi, or if no GPU is used."""

    def __init__(self, index: int | None, *, every: float = 0.25, ask: Ask = query_smi) -> None:
        self._index, self._every, self._ask = index, every, ask
        self._samples: list[tuple[float, int]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="GPU use", daemon=True)

    @property
    def share(self) -> float | None:
        return fmean(share for share, _ in self._samples) if self._samples else None

    @property
    def memory(self) -> int | None:
        return max((nbytes for _, nbytes in self._samples), default=None)

    def _watch(self) -> None:
        while self._index is not None and not self._over.wait(self._every):
            numbers = understood(self._ask(self._index))
            if numbers is not None:
                self._samples.append(numbers)

    def __enter__(self) -> GpuUse:
        if self._index is not None and (self._ask is not query_smi or shutil.which("nvidia-smi")):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
