"""The time that a job takes from an incident to its next commit, and the work that was lost.

incident (generation g)  -->  a survivor leaves g  -->  generation g+1  -->  its first commit
|<------ detect ------------->|<--- reconfigure ------->|<--- commit ------->|
|<----------------------------------- seconds ---------------------------->|

The incident of a worker that died begins when its connection ends, which the kernel does at once; that of a silent one
begins with its last sign of progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from paceline.elastic.journal import Journal

ENDING = ("died", "cut off", "left", "silent", "differs")  # incidents that end a generation
HOW = {
    "died": "its connection and its process ended",
    "cut off": "its connection ended",
    "left": "it said so with its vote",
    "silent": "members waited for it and saw no progress",
    "differs": "the checksum of its state was not that of most members",
}


@dataclass
class Recovery:
    """An incident that ended a generation, until a later one commits. Times are those of the coordinator."""

    number: int
    incident: dict[str, Any]
    began: float
    left: float | None = None
    formed: float | None = None
    shards: dict[str, int] = field(default_factory=dict)

    @property
    def generation(self) -> int:
        return int(self.incident["generation"])

    def figures(self, now: float) -> dict[str, Any]:
        formed = now if self.formed is None else self.formed
        left = formed if self.left is None else min(self.left, formed)
        phases = {"detect": left - self.began, "reconfigure": formed - left, "commit": now - formed}
        rounded = {name: round(seconds, 4) for name, seconds in phases.items()}
        return {"seconds": round(now - self.began, 4), **rounded, "shards": sum(self.shards.values())}


class Recoveries:
    """Incidents that wait for a commit of a later generation."""

    def __init__(self) -> None:
        self._open: list[Recovery] = []

    def begin(self, number: int, incident: dict[str, Any], now: float) -> None:
        """Add an incident, which has this number in the journal."""
        if incident["what"] in ENDING and "generation" in incident:
            silence = float(incident.get("silence", 0.0))
            incident.setdefault("how", HOW[incident["what"]])
            self._open.append(Recovery(number, incident, now - silence))

    def knows(self, member: str, generation: int) -> bool:
        """Return whether a member is part of an open incident of a generation."""
        return any(one.incident.get("member") == member and one.generation == generation for one in self._open)

    def died(self, journal: Journal, member: str) -> None:
        """Register that a member that was cut off is dead."""
        for one in self._open:
            if one.incident.get("member") == member and one.incident["what"] == "cut off":
                one.incident.update(what="died", how=HOW["died"])
                journal.amend(one.number, one.incident)

    def left(self, generation: int, member: str, shards: int, now: float) -> None:
        """Register that a member has left a generation, and how many shards of the last step it had computed."""
        for one in self._open:
            if one.generation == generation and one.formed is None:
                one.left = now if one.left is None else one.left
                one.shards[member] = shards

    def formed(self, generation: int, *, counts: bool, now: float) -> None:
        """Register that the next generation is known. If the step that was under way `counts`, no work was lost."""
        for one in self._open:
            if one.generation < generation and one.formed is None:
                one.formed = now
                if counts:
                    one.shards.clear()

    def end(self, journal: Journal, generation: int, now: float) -> None:
        """Note the seconds of all incidents in earlier generations, because a step was committed in this one."""
        waiting = []
        for one in self._open:
            if one.generation < generation:
                journal.amend(one.number, {**one.incident, **one.figures(now)})
            else:
                waiting.append(one)
        self._open = waiting


def summary_of(incidents: Iterable[dict[str, Any]]) -> str:
    """Return one line about those incidents that ended a generation, or an empty text if none did."""
    ending = [line for line in incidents if line["what"] in ENDING]
    if not ending:
        return ""
    kinds = Counter(str(line["what"]) for line in ending)
    text = f"incidents: {', '.join(f'{count} {what}' for what, count in kinds.items())}"
    seconds = sorted(float(line["seconds"]) for line in ending if "seconds" in line)
    if not seconds:
        return text
    return f"{text}; seconds to the next commit: median {median(seconds):.2f}, longest {seconds[-1]:.2f}"


def line_of(incident: dict[str, Any]) -> str:
    """Return an incident in words: who, what, how detected, seconds of each phase, work lost."""
    who = str(incident.get("member") or f"{len(incident.get('members', ()))} members")
    rank = f", rank {incident['rank']}" if "rank" in incident else ""
    text = f"{incident['what']}: {who} (generation {incident.get('generation')}{rank})"
    if len(set(lengths := incident.get("lengths", ()))) > 1:
        text += f"; shards by rank: {', '.join(map(str, lengths))}"
    if "how" in incident:
        text += f"; {incident['how']}"
    if "seconds" in incident:
        text += f"; {incident['seconds']:.2f} s to the next commit"
    if "detect" in incident:
        phases = ", ".join(f"{incident[name]:.3f} {name}" for name in ("detect", "reconfigure", "commit"))
        text += f" ({phases}), {incident['shards']} shards computed again"
    return text
