"""Hosts of a lab whose links are cut: only the side that reaches the coordinator commits (needs root)."""

import pytest

from tests.elastic.hosts import cut_and_heal

pytestmark = [pytest.mark.multi, pytest.mark.root, pytest.mark.slow]


@pytest.mark.parametrize("coordinator", [0, 3], ids=["coordinator on the majority's side", "on the cut host"])
def test_the_side_that_reaches_the_coordinator_goes_on_and_the_other_waits_and_comes_back(tmp_path, coordinator):
    seen = cut_and_heal(tmp_path, victim=3, coordinator=coordinator, seconds=15)
    assert seen["near"] > 0, seen
    assert seen["far"] == 0, seen
    assert seen["says so"], seen
    assert (seen["once"], seen["replicas"], seen["gap"]) == (True, True, []), seen
    assert seen["rejoins after"] < 3, seen
