"""The cost of reading from an object store, over the ranks of a run: requests, retries and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from paceline.measure.record.figures import InputPart
from paceline.measure.record.rank_report import RankReport


def input_part(ranks: Sequence[RankReport]) -> InputPart:
    """Return the sums over all ranks, or an empty part if no rank has read from a store."""
    parts = [rank.input for rank in ranks if rank.input]
    if not parts:
        return {}
    reasons: Counter[str] = Counter()
    for part in parts:
        reasons.update(part.get("reasons", {}))
    return {
        "requests": sum(part.get("requests", 0) for part in parts),
        "retries": sum(part.get("retries", 0) for part in parts),
        "nbytes": sum(part.get("nbytes", 0) for part in parts),
        "again": sum(part.get("again", 0) for part in parts),
        "reasons": dict(reasons),
    }


def input_notes(part: InputPart) -> Iterator[str]:
    """Yield a note if requests were repeated, with the reasons."""
    if part.get("retries"):
        reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(part["reasons"].items()))
        yield f"object store: {part['retries']:,} of {part['requests']:,} requests had to be repeated ({reasons})"
    if part.get("again"):
        yield f"object store: {part['again']:,} blocks were read twice for lack of memory. try: a smaller window"
