"""What a run would do, without running it: members, notes, chunks and traffic. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from paceline.bench.profile import StepProfile
from paceline.bench.profile import read as read_profile
from paceline.compose import compose
from paceline.engine.coded import coded_link, seconds_of
from paceline.exchanges.costs import traffic
from paceline.jobs.measure import check, machine
from paceline.jobs.predict import Prediction, predict
from paceline.models.layouts import layout_built, layout_of
from paceline.run import Run
from paceline.types import Axes, Chunk, Flow, Lane, Layout, Link, Profile, Slot

CROSSES = "during backward, back before the next forward needs it"
LEAVES = {
    "backward": "during backward, back before the update",
    "begin": "when a step begins, back before its update",
    "update": "after the local update, back before the next step",
}


@dataclass(frozen=True)
class Explanation:
    """`received` is per worker and step, in bytes. A reference has no axes and no figures.

    `planned` is whether the chunks are those of the run; otherwise layer times or link are not known yet.
    """

    run: Run
    axes: Axes | None
    notes: tuple[str, ...]
    model_bytes: int = 0
    chunks: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    rounds: int = 0
    planned: bool = True
    prediction: Prediction | None = None


def explain(run: Run) -> Explanation:
    notes = tuple(check(run))
    axes = compose(run, machine())
    if axes is None:
        return Explanation(run, axes, notes)
    slots = _slots(run)
    given = read_profile(Path(run.profile)) if run.profile else None
    link = given.measured_link() if given else None
    profiles = [_profile(lane, slots, given) for lane in axes.rule.lanes]
    cuts = [cut for profile in profiles for cut in _chunks(axes, profile, link, run.workers)]
    sizes = tuple(axes.compressor.nbytes(layout, chunk) for layout, chunk in cuts)
    rounds = [traffic(axes.exchange, axes.compressor, layout, chunk, run.cluster) for layout, chunk in cuts]
    flows: list[Flow] = [flow for chunk in rounds for flows in chunk for flow in flows]
    received = [0] * (run.workers + axes.exchange.servers)  # servers are ranks after the workers
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
        planned=not axes.schedule.measures or link is not None,
        prediction=_predicted(axes, given, profiles[0], run.workers),
    )


def _profile(lane: Lane, slots: list[Slot], given: StepProfile | None) -> Profile:
    """Gradients become ready from the last layer to the first, or as a profile says."""
    tail = {"flags": len(slots), "mass": 1}.get(lane.tail, 0)
    if given is None:
        return Profile(Layout(tuple(reversed(slots)), 4, tail))
    place = {name: k for k, name in enumerate(given.names)}
    ordered = sorted(slots, key=lambda slot: place.get(slot.name, -1))
    return given.for_layout(Layout(tuple(ordered), 4, tail), "the profile")


def _chunks(axes: Axes, profile: Profile, link: Link | None, workers: int) -> list[tuple[Layout, Chunk]]:
    """Every chunk of one lane; without a link, layer times say nothing, and a schedule plans as before it has them."""
    if link is None:
        plan = axes.schedule.plan(Profile(profile.layout), _UNKNOWN.seconds)
    else:
        plan = axes.schedule.plan(profile, coded_link(link, axes.compressor, profile.layout, workers).seconds)
    return [(profile.layout, chunk) for chunk in plan.chunks()]


_UNKNOWN = Link(0.0, 1e9)  # for schedules that do not look at it


def _predicted(axes: Axes, given: StepProfile | None, profile: Profile, workers: int) -> Prediction | None:
    """Where a mean gradient is exchanged, and times and link are known."""
    link = None if given is None else given.measured_link()
    if given is None or link is None or axes.rule.name != "grad":
        return None
    cuts = _chunks(axes, profile, link, workers)
    costs = [seconds_of(axes.compressor.wires(layout, chunk, workers), workers, link) for layout, chunk in cuts]
    coded = coded_link(link, axes.compressor, profile.layout, workers)
    return predict(axes.schedule, profile, coded, costs, (given.forward_seconds, given.backward))


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
    when = CROSSES if axes.schedule.crosses_step else LEAVES[axes.rule.leaves]
    lanes = f"{' and '.join(lane.name for lane in axes.rule.lanes)}, {when}"
    lines.append(f"{'sends':11} {lanes}")
    lines += [f"{'note':11} {note}" for note in explanation.notes]
    sizes = explanation.chunks
    lines.append(f"{'chunks':11} {len(sizes)}: {min(sizes):,} to {max(sizes):,} bytes, median {median(sizes):,.0f}")
    lines.append(f"{'model':11} {explanation.model_bytes:,} bytes")
    if not explanation.planned:
        lacking = "the profile has no link" if run.profile else "--profile FILE gives them"
        lines.append(f"{'plan':11} made in the run from layer times and link; {lacking}")
    rounds = f"in {explanation.rounds} round(s)"
    workers, servers = explanation.received[: run.workers], explanation.received[run.workers :]
    lines.append(f"{'received':11} {max(workers):,} bytes per worker and exchange, {rounds}")
    if servers:
        lines.append(f"{'servers':11} {len(servers)}, each receives at most {max(servers):,} bytes")
    if explanation.prediction is not None:
        lines += _costs(explanation.prediction)
    return lines


def _costs(found: Prediction) -> list[str]:
    hidden = found.communication - min(found.exposed, found.communication)
    return [
        f"{'step':11} {(found.compute + found.exposed) * 1e3:,.1f} ms on the link of the profile, by a sketch:",
        f"{'':11} {found.compute * 1e3:,.1f} ms computing, {found.exposed * 1e3:,.1f} ms waiting; "
        f"{hidden * 1e3:,.1f} ms hidden",
    ]
