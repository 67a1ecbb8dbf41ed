"""Seconds in which threads of this process were ready to run and no core was free for them."""

from __future__ import annotations

from pathlib import Path

_TASKS = Path("/proc/self/task")


def queued_seconds() -> float:
    """Return the seconds summed over all threads that live now; 0 if the kernel does not count them."""
    total = 0
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:
        return 0.0
    for task in tasks:
        total += _queued(task / "schedstat")
    return total / 1e9


def _queued(path: Path) -> int:
    """Return the second number of schedstat, nanoseconds on the run queue; 0 if the thread has just ended."""
    try:
        return int(path.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
