"""A chart of one step of each contender on a common time axis, with a lane for compute and lanes for communication."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.race.results.standing import PARTS, Standing
from paceline.report import tables
from paceline.report.chart import Bar, Row, Rows
from paceline.report.plots import Figure
from paceline.report.trace import Span

RANKS = 4  # ranks of a contender whose lanes are drawn; the table has all ranks
_LANES = {"compute": "", "communication": " sends"}
_MOST = 40  # units of a rank that are drawn one by one


def timeline(steps: Sequence[tuple[Standing, Sequence[Span]]], workers: int) -> Figure | None:
    """Return one step of each contender that has events, all on the same scale."""
    shown = [(standing, spans) for standing, spans in steps if spans]
    if not shown:
        return None
    rows = tuple(row for standing, spans in shown for row in _lanes(standing, spans))
    words = [f"One step of {s.label}, {1e3 * _length(spans):.1f} ms on {s.workers} ranks." for s, spans in shown]
    legend = (*((part, part) for part in PARTS), ("under way", "flight"))
    return Figure(
        name=f"timeline-{workers}",
        title="Timeline of a step",
        says=" ".join(words),
        chart=Rows("ms since the step began", rows, legend, thick=16, gap=5),
        table=tables.timeline({standing.label: spans for standing, spans in shown}),
    )


def _length(spans: Sequence[Span]) -> float:
    return max(span.stop for span in spans)


def _lanes(standing: Standing, spans: Sequence[Span]) -> list[Row]:
    """Return the lanes of a contender's first ranks below its name.

    The compute lane is above the communication lanes.
    """
    lanes = sorted(
        {(s.rank, s.lane) for s in spans if s.rank < RANKS}, key=lambda lane: (lane[0], lane[1] != "compute")
    )
    more = f", ranks 0 to {RANKS - 1} of {standing.workers}" if any(span.rank >= RANKS for span in spans) else ""
    heading = f"{standing.label}, {1e3 * _length(spans):.1f} ms{more}"
    merged = _merged(spans)
    return [
        Row(
            f"rank {rank}{_LANES[lane]}",
            tuple(_bar(span) for span in merged if (span.rank, span.lane) == (rank, lane)),
            heading=heading if k == 0 else "",
        )
        for k, (rank, lane) in enumerate(lanes)
    ]


def _bar(span: Span) -> Bar:
    start, stop = 1e3 * span.start, 1e3 * span.stop
    color = span.name if span.lane == "compute" else "flight"
    return Bar(
        start, stop, color, f"{span.name}, rank {span.rank}: {start:.2f} to {stop:.2f} ms ({stop - start:.2f} ms)"
    )


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Return the spans to draw. If a rank has many units under way, their spans are merged where they overlap."""
    kept = [span for span in spans if span.lane == "compute"]
    for rank in {span.rank for span in spans}:
        flying = [span for span in spans if span.lane == "communication" and span.rank == rank]
        kept += flying if len(flying) <= _MOST else _union(flying)
    return sorted(kept, key=lambda span: (span.rank, span.lane, span.start))


def _union(spans: Sequence[Span]) -> list[Span]:
    stretches: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        if stretches and span.start <= stretches[-1].stop:
            last = stretches.pop()
            span = Span(last.rank, last.lane, "chunks", last.start, max(last.stop, span.stop), last.step)
        stretches.append(span)
    return stretches
