"""The load that other work puts on the machine. A rate that was measured on a busy machine says little about the run.

/proc/stat          the time of all cores, and the time that the host took away (steal)
os.times()          the time of our workers, once they have ended
/proc/self/task     the time that a worker waited for a core (see starved.py)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.measure.record.figures import BusyPart
from paceline.measure.record.rank_report import RankReport

OTHER_CORES = 0.25  # cores that other processes may use before the machine counts as busy
STEAL = 0.03  # share of the cores' time
STARVED = 0.15  # share of a step
LOOK = 0.5  # seconds of the observation before anything starts
_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class CoreSeconds:
    """Seconds since the machine started, summed over all cores."""

    busy: float
    stolen: float

    @staticmethod
    def now(path: Path = _STAT) -> CoreSeconds | None:
        """Read the counters of the kernel. Return None if there are none."""
        try:
            words = path.read_text().split("\n", 1)[0].split()
            ticks = [int(word) for word in words[1:9]]
        except (OSError, ValueError):
            return None
        if words[:1] != ["cpu"] or len(ticks) < 8:
            return None
        hertz = os.sysconf("SC_CLK_TCK")
        user, nice, system, _, _, interrupts, soft, stolen = ticks
        return CoreSeconds((user + nice + system + interrupts + soft) / hertz, stolen / hertz)


def cores() -> int:
    return os.cpu_count() or 1


def _own() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Usage:
    """The use of this machine by other processes between two moments."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began, self._before, self._mine = clock(), CoreSeconds.now(), _own()
        self._load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        self._end: tuple[float, CoreSeconds | None, float] | None = None

    def stop(self) -> None:
        self._end = self._clock(), CoreSeconds.now(), _own()

    def part(self, ranks: Sequence[RankReport] = ()) -> BusyPart:
        """Return the figures for a record."""
        figures: BusyPart = {"load": self._load, "cores": cores()}
        now, after, mine = self._end or (self._clock(), CoreSeconds.now(), _own())
        seconds = now - self._began
        if self._before is not None and after is not None and seconds > 0:
            others = after.busy - self._before.busy - (mine - self._mine)
            figures["other_cores"] = max(0.0, others / seconds)
            figures["steal"] = max(0.0, (after.stolen - self._before.stolen) / seconds / cores())
        if ranks and all(rank.queued_seconds_per_step is not None for rank in ranks):
            figures["starved"] = max(_starved(rank) for rank in ranks)
        return figures


def _starved(rank: RankReport) -> float:
    """Return the share of a step in which the computing threads of a rank waited for a core."""
    step = sum(rank.steps) / max(1, len(rank.steps))
    busy, queued = rank.cpu_seconds_per_step, rank.queued_seconds_per_step or 0.0
    return queued / max(busy + queued, step, 1e-9)


@contextmanager
def watched_machine() -> Iterator[Usage]:
    """Count the core seconds of other processes inside the with-block."""
    usage = Usage()
    try:
        yield usage
    finally:
        usage.stop()


def look(seconds: float = LOOK, sleep: Callable[[float], None] = time.sleep) -> BusyPart:
    """Observe the machine for a moment, before anything starts."""
    with watched_machine() as usage:
        sleep(seconds)
    return usage.part()


def why_busy(part: Mapping[str, float] | BusyPart) -> str:
    """Return in words why the machine counts as busy, or an empty text if it does not."""
    reasons = []
    used, steal, starved = (float(part.get(name) or 0.0) for name in ("other_cores", "steal", "starved"))  # type: ignore[arg-type]
    if used > OTHER_CORES:
        reasons.append(f"other processes used {used:.1f} of {int(part.get('cores') or 1)} cores")
    if steal > STEAL:
        reasons.append(f"the host took away {100 * steal:.0f} % of the cores' time")
    if starved > STARVED:
        reasons.append(f"workers waited for a core {100 * starved:.0f} % of the time")
    return ", ".join(reasons)
