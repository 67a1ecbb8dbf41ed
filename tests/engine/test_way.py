"""A schedule decides once how its units travel, and engine, gates and dispatcher follow from that."""

import pytest

from paceline.engine.crossing import CrossingEngine, engine_of
from paceline.engine.dispatch import Decoupled, Dispatcher, Follower, Leader
from paceline.engine.engine import Engine
from paceline.engine.step_plan import plan_whole
from paceline.engine.way import way_of
from paceline.strategy import schedules
from paceline.types import Layout, Slot

PLAN = plan_whole([Layout((Slot("x", 8),), 4, 1)])


@pytest.mark.parametrize("text", [*schedules.MENU.names(), "auto(crossing=true)"])
def test_engine_and_dispatcher_belong_to_one_way(text):
    schedule = schedules.MENU.make(text)
    way = way_of(schedule)
    crossing = (Decoupled, Decoupled) if schedule.decouples else (Leader, Follower)
    expected = crossing if schedule.crosses_step else (Dispatcher, Dispatcher)
    assert tuple(type(way.dispatcher(PLAN, [0], leads=leads)) for leads in (True, False)) == expected
    assert engine_of(way) is (CrossingEngine if schedule.crosses_step else Engine)
    assert way.led == (expected[0] is Leader)
