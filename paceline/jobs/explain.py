"""What a run would do, without running it: members, notes, chunks and traffic. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from paceline.compose import compose
from paceline.jobs.measure import check, machine
from paceline.models.layouts import layout_built, layout_of
from paceline.run import Run
from paceline.types import Axes, Flow, Lane, Layout, Profile, Slot

LEAVES = {
    "backward": "during backward, back before the update",
    "begin": "when a step begins, back before its update",
    "update": "after the local update, back before the next step",
}


@dataclass(frozen=True)
class Explanation:
    """`received` is per worker and step, in bytes. A reference has no axes and no figures."""

    run: Run
    axes: Axes | None
    notes: tuple[str, ...]
    model_bytes: int = 0
    chunks: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    rounds: int = 0


def explain(run: Run) -> Explanation:
    notes = tuple(check(run))
    axes = compose(run, machine())
    if axes is None:
        return Explanation(run, axes, notes)
    slots = _slots(run)
    sizes = tuple(size for lane in axes.rule.lanes for size in _chunks(axes, lane, slots))
    cluster = run.cluster
    rounds = [axes.exchange.traffic(nbytes, cluster) for nbytes in sizes]
    flows: list[Flow] = [flow for chunk in rounds for flows in chunk for flow in flows]
    received = [0] * run.workers
    for flow in flows:
        received[flow.dst] += flow.nbytes
    return Explanation(
        run=run,
        axes=axes,
        notes=notes,
        model_bytes=sum(slot.numel for slot in slots) * 4,
        chunks=sizes,
        received=tuple(received),
        rounds=sum(len(chunk) for chunk in rounds),
    )


def _chunks(axes: Axes, lane: Lane, slots: list[Slot]) -> list[int]:
    """Bytes of every chunk of one lane. Gradients become ready from the last layer to the first."""
    tail = {"flags": len(slots), "mass": 1}.get(lane.tail, 0)
    layout = Layout(tuple(reversed(slots)), 4, tail)
    plan = axes.schedule.plan(Profile(layout), lambda nbytes: nbytes / 1e9)
    return [axes.compressor.nbytes(layout, chunk) for chunk in plan.chunks()]


def _slots(run: Run) -> list[Slot]:
    """The model's tensors: shipped ones are known, others are built without memory, which loads torch."""
    known = layout_of(run.model) if run.classes is None else None
    return known or layout_built(run.model, classes=run.classes, image_size=run.image_size)


def spoken(explanation: Explanation) -> list[str]:
    """The explanation as lines of text."""
    run, axes = explanation.run, explanation.axes
    lines = [run.text]
    if axes is None:
        lines.append(f"{run.reference} is a reference: something to race against, not made of axes")
        return lines
    for name in ("rule", "exchange", "schedule", "compressor", "membership"):
        lines.append(f"{name:11} {getattr(axes, name)}")
    lanes = f"{' and '.join(lane.name for lane in axes.rule.lanes)}, {LEAVES[axes.rule.leaves]}"
    lines.append(f"{'sends':11} {lanes}")
    lines += [f"{'note':11} {note}" for note in explanation.notes]
    sizes = explanation.chunks
    lines.append(f"{'chunks':11} {len(sizes)}: {min(sizes):,} to {max(sizes):,} bytes, median {median(sizes):,.0f}")
    lines.append(f"{'model':11} {explanation.model_bytes:,} bytes")
    rounds = f"in {explanation.rounds} round(s)"
    lines.append(f"{'received':11} {max(explanation.received):,} bytes per worker and exchange, {rounds}")
    return lines
