"""Inputs recorded from real runs, fed to a fresh dispatcher, give the decisions of the run."""

import pytest

from paceline.comm.thread import run_ranks
from paceline.engine.dispatch import Dispatcher
from paceline.engine.way import way_of
from paceline.errors import Refused
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy import exchanges, schedules
from paceline.train.pace import Pace
from paceline.train.planning import WATCHED
from paceline.types import Event, Unit
from tests.train.problems import OPTIMIZERS, batches, loss_of, mlp

SMALL = {
    "priority": "priority(partition=0.0005, credit=0.001)",
    "dear": "dear(mb=0.0005)",
    "fusion": "fusion(mb=0.0005)",
}
SCHEDULES = [SMALL.get(name, name) for name in schedules.MENU.names() if name != "auto"]
EXCHANGES = [name for name in exchanges.MENU.names() if name not in ("neighbor", "window")]
STEPS = WATCHED + 5


def axes_of(schedule, exchange):
    try:
        return compose(Run(workers=2, schedule=schedule, exchange=exchange)).axes
    except Refused:
        return None


PAIRS = [(s, e) for s in SCHEDULES for e in EXCHANGES if axes_of(s, e) is not None]


def recorded(comm, schedule, exchange):
    """Train a few steps; what the engine was told and decided after its plan was made, and what it was planned from."""
    model = mlp()
    pace = Pace(model, OPTIMIZERS["sgd"](model.parameters()), comm=comm, axes=axes_of(schedule, exchange))
    engine = pace.engines[0]
    for number, (x, y) in enumerate(batches(steps=STEPS)):
        if number == WATCHED + 2:
            pace.finish()
            pace.record_events([])
        share = slice(comm.rank * 12, comm.rank * 12 + 12)
        loss_of(model, x[share], y[share]).backward()
        pace.step()
    pace.finish()
    log = [Event._make(noted) for noted in engine.log]
    log = log[next(k for k, event in enumerate(log) if event.kind == "begin") :]  # a step may have begun before
    pace.record_events(None)
    known = engine.profile
    starts = [time for arena in engine.arenas for time in (known.for_layout(arena.layout).forward if known else ())]
    pace.close()
    return log, engine.step_plan, starts, comm.rank


def replay(events, dispatcher):
    """The units that a dispatcher lets leave when it is told the same, in order."""
    left = []
    for event in events:
        if event.kind == "begin":
            left += dispatcher.begin(event.step)
        elif event.kind == "ready":
            left += dispatcher.ready(event.what)
        elif event.kind == "need":
            left += dispatcher.need(event.what)
        elif event.kind == "said":
            left += dispatcher.announced(event.what)
        elif event.kind == "back":
            left += dispatcher.back(Unit(event.step, event.what, int(event.detail)))
    return left


def test_schedules_and_exchanges_are_many():
    assert len(PAIRS) >= 12


@pytest.mark.parametrize(("schedule", "exchange"), PAIRS)
def test_recorded_inputs_give_the_same_decisions(schedule, exchange):
    for log, plan, starts, rank in run_ranks(2, lambda comm: recorded(comm, schedule, exchange)):
        way = way_of(schedules.MENU.make(schedule))
        urgency = plan.urgency(starts) if way.crosses else ()
        left = [Unit(e.step, e.what, int(e.detail)) for e in log if e.kind == "leave"]
        assert len(left) >= 2 * len(plan.chunks) * way.phases
        assert replay(log, way.dispatcher(plan, urgency, leads=rank == 0)) == left


def test_another_dispatcher_decides_otherwise():
    """The control: the order of the plan is not the order of need."""
    log, plan, _, _ = run_ranks(2, lambda comm: recorded(comm, SMALL["priority"], "allreduce"))[0]
    left = [Unit(e.step, e.what, int(e.detail)) for e in log if e.kind == "leave"]
    assert replay(log, Dispatcher(plan.needs)) != left
