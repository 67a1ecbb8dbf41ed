"""The time that a job takes from an incident to its next commit.

incident (generation g) --> all have left g --> generation g+1 --> its first commit
|<------------------------------ seconds ------------------------------->|
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import median
from typing import Any

from paceline.elastic.journal import Journal

ENDING = ("died", "cut off", "left")  # incidents that end a generation


class Recoveries:
    """Incidents that wait for a commit of a later generation."""

    def __init__(self) -> None:
        self._open: list[tuple[int, dict[str, Any], float]] = []

    def begin(self, number: int, incident: dict[str, Any], now: float) -> None:
        """Add an incident, which has this number in the journal."""
        if incident["what"] in ENDING and "generation" in incident:
            self._open.append((number, incident, now))

    def end(self, journal: Journal, generation: int, now: float) -> None:
        """Note the seconds of all incidents in earlier generations, because a step was committed in this one."""
        waiting = []
        for number, incident, began in self._open:
            if int(incident["generation"]) < generation:
                journal.amend(number, {**incident, "seconds": round(now - began, 3)})
            else:
                waiting.append((number, incident, began))
        self._open = waiting


def summary_of(incidents: Iterable[dict[str, Any]]) -> str:
    """Return one line about the incidents of a job that ended a generation, or nothing if there were none."""
    ending = [line for line in incidents if line["what"] in ENDING]
    if not ending:
        return ""
    kinds = Counter(str(line["what"]) for line in ending)
    text = f"incidents: {', '.join(f'{count} {what}' for what, count in kinds.items())}"
    seconds = sorted(float(line["seconds"]) for line in ending if "seconds" in line)
    if not seconds:
        return text
    return f"{text}; seconds to the next commit: median {median(seconds):.2f}, longest {seconds[-1]:.2f}"
