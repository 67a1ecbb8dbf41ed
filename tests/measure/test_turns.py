"""The task of a shared start: orders, counts, memory."""

import pytest

from paceline.measure.turns import FEWEST, MOST, TurnsTask, _group_left, free_memory
from paceline.run.run import Run


def task(**changes):
    runs = [Run(workers=2, strategy=name, steps=2) for name in ("limit", "ddp", "allreduce")]
    return TurnsTask.model_validate({"runs": runs, "labels": ("limit", "ddp", "allreduce"), **changes})


def test_every_turn_has_all_contenders_in_an_order_of_its_own():
    orders = [task().order(turn) for turn in range(30)]
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    assert len({tuple(order) for order in orders}) == 6


def test_all_ranks_draw_the_same_order_and_another_seed_another():
    assert [task().order(k) for k in range(9)] == [task().order(k) for k in range(9)]
    assert [task(seed=1).order(k) for k in range(9)] != [task().order(k) for k in range(9)]


@pytest.mark.parametrize(("seconds", "each", "expected"), [(6, 0.5, 12), (6, 100, FEWEST), (6, 0, MOST)])
def test_turns_fill_the_seconds(seconds, each, expected):
    assert task(seconds=seconds).count(each) == expected


def test_a_number_of_turns_wins_over_seconds():
    assert task(turns=7).count(100.0) == 7


def test_a_task_survives_the_way_to_the_worker():
    assert TurnsTask.model_validate_json(task(room=5).model_dump_json()) == task(room=5)


def test_the_limit_of_a_control_group_counts(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert _group_left(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert _group_left(tmp_path) is None
    assert _group_left(tmp_path / "absent") is None
    assert free_memory() is None or free_memory() > 0
