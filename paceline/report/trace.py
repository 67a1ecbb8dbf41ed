"""Convert the events of a step to spans, and to a trace for Perfetto or chrome://tracing.

compute        data | forward | backward | update | exposed | update
communication            chunk 0 ======   chunk 1 =====
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from paceline.measure.record.record import Record

# A marker begins a part of the step, which lasts until the next marker of the same rank.
BEGINS = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "computed": "update",
    "left": "exposed",
    "waited": "update",
    "updated": "other",
    "end": None,
}
Events = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Span:
    """A period of time on one rank. `lane` is compute or communication."""

    rank: int
    lane: str
    name: str
    start: float
    stop: float
    step: int


def spans_of(rank: int, events: Events) -> list[Span]:
    """Return the spans of a rank: its compute, and the units that it had under way."""
    return [*_compute(rank, events), *_communication(rank, events)]


def _compute(rank: int, events: Events) -> Iterator[Span]:
    marks = [event for event in events if event[1] in BEGINS]
    for (start, kind, step, *_), (stop, follows, *_) in pairwise(marks):
        name = BEGINS[kind]
        # If more data follows a backward, the update accumulates several backwards.
        if name is not None and not (kind == "computed" and follows == "data") and stop > start:
            yield Span(rank, "compute", name, start, stop, step)


def _communication(rank: int, events: Events) -> Iterator[Span]:
    """Return the spans of units, from leaving until the engine saw the result.

    Chunk numbers repeat in every lane of a rule.
    """
    flying: dict[Any, list[float]] = {}
    for seconds, kind, step, what, phase in events:
        key = (step, what, phase)
        if kind == "leave":
            flying.setdefault(key, []).append(seconds)
        elif kind in ("arrived", "back") and flying.get(key):
            name = f"chunk {what}" + (f", phase {phase}" if phase else "")
            yield Span(rank, "communication", name, flying[key].pop(0), seconds, step)


def one_step(ranks: Sequence[Events], usual: float | None = None) -> list[Span]:
    """Return the spans of one recorded step on every rank: the one whose length is nearest to the usual length.

    The first step may still be warm-up. If the usual length is not known, the second step is returned.
    """
    starts = [[event[0] for event in events if event[1] == "data"] for events in ranks]
    ends = [[event[0] for event in events if event[1] == "end"] for events in ranks]
    if not ranks or not all(starts) or not all(ends):
        return []
    count = min(map(len, ends))
    bounds = [_bounds(starts, ends, number) for number in range(min(1, count - 1), count)]
    opens, closes = min(bounds, key=lambda sides: 0.0 if usual is None else abs(_length(*sides) - usual))
    begin, end = min(opens), max(closes)
    spans = [span for rank, events in enumerate(ranks) for span in spans_of(rank, events)]
    shown = [s for s in spans if opens[s.rank] <= s.start < closes[s.rank] and s.stop <= end]
    return [Span(s.rank, s.lane, s.name, s.start - begin, s.stop - begin, s.step) for s in shown]


def _bounds(starts: Sequence[list[float]], ends: Sequence[list[float]], number: int) -> tuple[list[float], list[float]]:
    """Return when this step began and ended on each rank."""
    closes = [marks[number] for marks in ends]
    return [
        max((t for t in marks if t < close), default=close) for marks, close in zip(starts, closes, strict=True)
    ], closes


def _length(opens: Sequence[float], closes: Sequence[float]) -> float:
    return max(closes) - min(opens)


def chrome_trace(record: Record, ranks: Sequence[Events]) -> dict[str, Any]:
    """Return the trace: one process per rank, with a thread for compute and some for units under way."""
    spans = [span for rank, events in enumerate(ranks) for span in spans_of(rank, events)]
    zero = min((span.start for span in spans), default=0.0)
    events: list[dict[str, Any]] = []
    for rank in range(len(ranks)):
        own = [span for span in spans if span.rank == rank]
        threads = _threads(own)
        events += _names(rank, record, max([0, *threads.values()]))
        events += [_complete(span, threads[span], zero) for span in own]
        events += [_instant(rank, event, zero) for event in ranks[rank] if event[1] == "ready"]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "record": record.id,
            "command": record.text,
            "kind": record.kind,
            "clock": record.clock or {"how": "not aligned: this record has no clock offsets"},
        },
    }


def _threads(spans: Sequence[Span]) -> dict[Span, int]:
    """Return the thread of each span: 0 for compute.

    Communication spans that overlap get different threads, starting with 1.
    """
    threads: dict[Span, int] = {}
    free: list[float] = []
    for span in sorted(spans, key=lambda span: span.start):
        if span.lane == "compute":
            threads[span] = 0
            continue
        at = next((k for k, until in enumerate(free) if until <= span.start), len(free))
        free[at : at + 1] = [span.stop]
        threads[span] = at + 1
    return threads


def _names(rank: int, record: Record, lanes: int) -> Iterator[dict[str, Any]]:
    yield _meta(rank, 0, "process_name", f"rank {rank} ({record.kind})")
    for thread in range(lanes + 1):
        name = "compute" if thread == 0 else "communication" + (f" {thread}" if lanes > 1 else "")
        yield _meta(rank, thread, "thread_name", name)


def _meta(rank: int, thread: int, name: str, value: str) -> dict[str, Any]:
    return {"ph": "M", "pid": rank, "tid": thread, "name": name, "args": {"name": value}}


def _complete(span: Span, thread: int, zero: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": span.rank,
        "tid": thread,
        "name": span.name,
        "cat": span.lane,
        "ts": round((span.start - zero) * 1e6, 3),
        "dur": round((span.stop - span.start) * 1e6, 3),
        "args": {"step": span.step},
    }


def _instant(rank: int, event: Sequence[Any], zero: float) -> dict[str, Any]:
    seconds, _, step, what, _ = event
    return {
        "ph": "i",
        "s": "t",
        "pid": rank,
        "tid": 0,
        "name": f"tensor {what} ready",
        "cat": "ready",
        "ts": round((seconds - zero) * 1e6, 3),
        "args": {"step": step},
    }


def to_json(trace: dict[str, Any]) -> str:
    return json.dumps(trace, allow_nan=False, separators=(",", ":")) + "\n"
