"""Simulate a step of an explained run on the link of its profile, which serves one chunk at a time.

The link was fitted to all-reduces of dense chunks, in which a rank receives 2 (P-1)/P of the bytes. Any other round
costs as much as an all-reduce with the same number of received bytes per rank. All ranks are assumed to be alike, and
updates to take no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.engine.step_plan import StepPlan
from paceline.engine.way import way_of
from paceline.forecast.rounds import RoundStage
from paceline.forecast.timeline import Compute, Script, Timeline
from paceline.protocols import Schedule
from paceline.run.explain import Explanation, Prediction
from paceline.types import Profile

STEPS = 5  # the last two are steady


def with_prediction(explanation: Explanation) -> Explanation:
    """Add the simulated step, if layer times and link are known."""
    basis, axes = explanation.basis, explanation.axes
    if basis is None or axes is None:
        return explanation
    prediction = predict(axes.schedule, basis.plan, [basis.profile], basis.costs, basis.totals)
    return replace(explanation, prediction=prediction)


def predict(
    schedule: Schedule,
    plan: StepPlan,
    profiles: Sequence[Profile],
    costs: Sequence[float],
    totals: tuple[float, float],
) -> Prediction:
    """Return the seconds of a simulated step.

    `profiles` belong to the arenas of the plan, `costs` are the seconds of its chunks, and `totals` are the seconds of
    forward and of backward.
    """
    forward, backward = totals
    way = way_of(schedule)
    compute = Compute(
        forward=tuple(time for profile in profiles for time in profile.forward),
        forward_seconds=forward,
        ready=tuple(time for profile in profiles for time in profile.ready),
        backward=backward,
    )

    def stages(lane: int, chunk: int, phase: int, step: int) -> list[RoundStage]:
        return [RoundStage(0.0, (costs[chunk] / way.phases,))]

    begins = Timeline(Script(compute, way, (plan,), stages)).play(STEPS).begins
    step = begins[-1] - begins[-2]
    return Prediction(forward + backward, max(0.0, step - forward - backward), sum(costs))
