"""Explain what a run would do, without running it: members, notes, chunks and traffic. Listed models load no torch."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from paceline.engine.coded import seconds_of
from paceline.engine.step_plan import StepPlan, plan_step, plan_whole, tail_of
from paceline.errors import PacelineError
from paceline.run.axes import Axes
from paceline.run.compose.compose import check
from paceline.run.run import SHAPES, Run
from paceline.strategy.exchanges._costs import load, total
from paceline.types import Lane, Layout, Link, Profile, Slot
from paceline.workload import sources
from paceline.workload.layouts import layout_of
from paceline.workload.profile import StepProfile
from paceline.workload.profile import read as read_profile
from paceline.workload.sources._source import Distant

CROSSES = "during backward, back before the next forward needs it"
LEAVES = {
    "backward": "during backward, back before the update",
    "begin": "when a step begins, back before its update",
    "update": "after the local update, back before the next step",
}


@dataclass(frozen=True)
class Prediction:
    """Seconds of one step: computing, waiting for communication, and communication in all."""

    compute: float
    exposed: float
    communication: float


@dataclass(frozen=True)
class Basis:
    """The inputs of a prediction: the plan, layer times, and the seconds of every chunk, of forward and of backward."""

    plan: StepPlan
    profile: Profile
    costs: tuple[float, ...]
    totals: tuple[float, float]


@dataclass(frozen=True)
class Explanation:
    """The answer of explain: members, notes, chunks and bytes. A reference has no axes and no figures.

    `received` has the bytes of one exchange for each rank, servers after workers. `crossing` has the bytes that come
    into each node from others. Both are means over `steps` steps; a topology repeats after `period`. `planned` is True
    if the run would use these chunks; otherwise layer times or link are not known yet.
    """

    run: Run
    axes: Axes | None
    notes: tuple[str, ...]
    model_bytes: int = 0
    chunks: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    crossing: tuple[int, ...] = ()
    rounds: int = 0
    steps: int = 1
    period: int = 1
    planned: bool = True
    basis: Basis | None = None
    prediction: Prediction | None = None


def explain(run: Run) -> Explanation:
    declared = declared_by(run)
    composed = check(run, unknown=() if declared is None else ("source",))
    axes, notes = composed.axes, (*composed.notes, *_unread(run, declared))
    if axes is None:
        return Explanation(run, axes, notes)
    slots = _slots(run, declared)
    known = read_profile(Path(run.profile)) if run.profile else None
    link = known.measured_link() if known else None
    profiles = [_profile(axes, lane, slots, known) for lane in axes.rule.lanes]
    plans = [_plan(axes, profile, link, run.workers) for profile in profiles]
    lanes = [[(plan.layouts[chunk.arena], chunk) for chunk in plan.chunks] for plan in plans]
    traffic = total([load(axes.exchange, axes.compressor, chunks, run.cluster) for chunks in lanes])
    return Explanation(
        run=run,
        axes=axes,
        notes=notes,
        model_bytes=sum(slot.numel for slot in slots) * 4,
        chunks=tuple(axes.compressor.nbytes(layout, chunk) for chunks in lanes for layout, chunk in chunks),
        received=traffic.received,
        crossing=traffic.crossing,
        rounds=traffic.rounds,
        steps=traffic.steps,
        period=traffic.period,
        planned=not axes.schedule.measures or link is not None or not axes.rule.averages_gradients,
        basis=_basis(axes, known, plans[0], profiles[0], run.workers),
    )


def _profile(axes: Axes, lane: Lane, slots: list[Slot], known: StepProfile | None) -> Profile:
    """Return a profile of the tensors, from the last layer to the first, or in the order of a known profile."""
    tail = tail_of(lane, len(slots))
    if known is None or not axes.rule.averages_gradients:
        return Profile(Layout(tuple(reversed(slots)), 4, tail))
    place = {name: k for k, name in enumerate(known.names)}
    ordered = sorted(slots, key=lambda slot: place.get(slot.name, -1))
    return known.for_layout(Layout(tuple(ordered), 4, tail), "the profile")


def _plan(axes: Axes, profile: Profile, link: Link | None, workers: int) -> StepPlan:
    """Return the plan of one lane, as an engine makes it."""
    if axes.schedule.measures and not axes.rule.averages_gradients:
        return plan_whole([profile.layout])
    return plan_step(axes.schedule, [profile], link, axes.compressor, workers)


def _basis(axes: Axes, times: StepProfile | None, plan: StepPlan, profile: Profile, workers: int) -> Basis | None:
    """Return the basis of a prediction, or None unless a mean gradient is exchanged and times and link are known."""
    link = None if times is None else times.measured_link()
    if times is None or link is None or not axes.rule.averages_gradients:
        return None
    wires = [axes.compressor.wires(plan.layouts[chunk.arena], chunk, workers) for chunk in plan.chunks]
    costs = tuple(seconds_of(rounds, workers, link) for rounds in wires)
    return Basis(plan, profile, costs, (times.forward_seconds, times.backward))


def declared_by(run: Run) -> Mapping[str, int] | None:
    """Return the samples that a source in an object store declares, because nothing is fetched; None for others."""
    try:
        source = sources.MENU.make(run.source)
    except PacelineError:
        return None  # refused with the other words
    return source.declared() if isinstance(source, Distant) else None


def _unread(run: Run, declared: Mapping[str, int] | None) -> Iterator[str]:
    if declared is not None:
        size, classes = declared["image_size"], declared["classes"]
        yield f"{run.source} is not read here: images of {size} pixels and {classes} classes, as its settings say"


def _slots(run: Run, declared: Mapping[str, int] | None) -> list[Slot]:
    """Return the tensors of the model; a model that is not listed is built without memory, which loads torch."""
    fit = sources.MENU.make(run.source).fit() if declared is None else declared
    shaped = fit or any(getattr(run, name) is not None for name in SHAPES)
    return (None if shaped else layout_of(run.model)) or _built(run, fit)


def _built(run: Run, fit: Mapping[str, int]) -> list[Slot]:
    """Return the tensors of the model as a worker would build it for the samples of the source."""
    import torch

    from paceline.workload.resolve import build

    with torch.device("meta"):
        model = build(run.model, **{name: getattr(run, name) for name in SHAPES}, fit=fit).model
    named = model.named_parameters()
    return [Slot(name, tensor.numel(), tuple(tensor.shape)) for name, tensor in named if tensor.requires_grad]


def spoken(explanation: Explanation, chosen: Collection[str] = ()) -> list[str]:
    """Return the explanation as lines; its command names the fields that were `chosen`, even if they are defaults."""
    run, axes = explanation.run, explanation.axes
    lines = [run.command(chosen)]
    if axes is None:
        lines.append(f"{run.reference} is a reference: something to race against, not made of axes")
        return lines
    for name in ("rule", "exchange", "schedule", "compressor", "membership"):
        lines.append(f"{name:11} {getattr(axes, name)}")
    when = CROSSES if axes.schedule.crosses_step else LEAVES[axes.rule.leaves]
    lanes = f"{' and '.join(lane.name for lane in axes.rule.lanes)}, {when}"
    lines.append(f"{'sends':11} {lanes}")
    for note in explanation.notes:
        lines += textwrap.wrap(
            note, 80, initial_indent=f"{'note':11} ", subsequent_indent=" " * 12, break_long_words=False
        )
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
    elif len(explanation.crossing) > 1:
        lines.append(_between_nodes(explanation))
    if explanation.prediction is not None:
        lines += _costs(explanation.prediction)
    return lines


def _between_nodes(explanation: Explanation) -> str:
    """Return a sentence on the traffic between nodes, which a changing topology may cause in some steps only."""
    steps, period = explanation.steps, explanation.period
    count = f"{period}" if steps == period else f"{steps} of {period}"
    mean = f", mean of {count} steps" if period > 1 else ""
    return f"{'nodes':11} {len(explanation.crossing)}, into each at most {max(explanation.crossing):,} bytes{mean}"


def _costs(prediction: Prediction) -> list[str]:
    compute, exposed = prediction.compute, prediction.exposed
    hidden = prediction.communication - min(exposed, prediction.communication)
    return [
        f"{'step':11} {(compute + exposed) * 1e3:,.1f} ms on the link of the profile, simulated:",
        f"{'':11} {compute * 1e3:,.1f} ms computing, {exposed * 1e3:,.1f} ms waiting; {hidden * 1e3:,.1f} ms hidden",
    ]
