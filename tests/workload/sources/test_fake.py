"""Samples made from ids."""

from itertools import islice

import pytest
import torch

from paceline.errors import BadMember
from paceline.types import Cursor, View, Workload
from paceline.workload.order import ids_of
from paceline.workload.sources import MENU

COUNTING = Workload(None, None, lambda ids: ids.clone())


def batches(text, count, cursor=Cursor(), moves=None):  # noqa: B008 a frozen value
    def to_device(batch):
        if moves is not None:
            moves.append(batch)
        return batch

    return list(islice(MENU.make(text).batches(COUNTING, View(1, 2), 8, cursor, to_device), count))


def test_on_the_device_one_batch_is_made_once_and_used_again():
    moves = []
    seen = batches("fake(device)", 5, moves=moves)
    assert len(moves) == 1
    assert all(batch is seen[0] for batch in seen)
    assert torch.equal(seen[0], ids_of(View(1, 2), 8, Cursor(), 65536))


def test_on_the_device_a_resumed_run_sees_the_same_batch():
    (first,) = batches("fake", 1, Cursor(seed=4))
    (later,) = batches("fake", 1, Cursor(epoch=3, step=7, seed=4))
    assert torch.equal(first, later)


def test_on_the_cpu_each_step_is_made_from_its_ids_and_moved():
    moves = []
    seen = batches("fake(cpu, samples=20)", 5, moves=moves)
    assert len(moves) == 5
    cursors = [Cursor(0, 0), Cursor(0, 1), Cursor(1, 0), Cursor(1, 1), Cursor(2, 0)]
    assert all(torch.equal(b, ids_of(View(1, 2), 8, c, 20)) for b, c in zip(seen, cursors, strict=True))


def test_on_the_cpu_batches_are_made_when_asked_for():
    moves = []
    batches("fake(cpu)", 0, moves=moves)
    assert moves == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fake(disk)", "location takes device or cpu; got disk"),
        ("fake(samples=0)", "at least one sample"),
        ("fake(samples=many)", "samples takes a whole number; got many"),
        ("fake(speed=3)", "fake takes location, samples; got speed"),
    ],
)
def test_wrong_settings_are_named(text, why):
    with pytest.raises(BadMember, match=why):
        MENU.make(text)
