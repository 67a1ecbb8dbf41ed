"""How busy the machine was: counters of the kernel, and the words about them."""

from dataclasses import replace

import pytest

from paceline.measure.busy import CoreSeconds, Usage, look, why_busy
from paceline.measure.starved import queued_seconds
from tests.measure.test_measure import rank_of


def test_the_counters_of_all_cores_are_read(tmp_path):
    path = tmp_path / "stat"
    path.write_text("cpu  100 200 300 9999 50 10 20 40 0 0\ncpu0 1 2 3\n")
    seconds = CoreSeconds.now(path)
    assert seconds.busy == pytest.approx(6.3)
    assert seconds.stolen == pytest.approx(0.4)
    path.write_text("nothing")
    assert CoreSeconds.now(path) is None
    assert CoreSeconds.now(tmp_path / "absent") is None


def test_a_look_has_the_figures_of_a_record():
    part = look(0.01)
    assert part["cores"] >= 1
    assert part["load"] >= 0
    assert part.get("other_cores", 0.0) >= 0


def test_a_worker_that_waits_for_a_core_is_starved():
    free = replace(rank_of(0, [0.1], [0.1] * 10), queued_seconds_per_step=0.0, cpu_seconds_per_step=0.1)
    waits = replace(free, queued_seconds_per_step=0.08, cpu_seconds_per_step=0.02)
    assert Usage().part([free])["starved"] == 0
    assert Usage().part([free, waits])["starved"] == pytest.approx(0.8)
    assert "starved" not in Usage().part([replace(free, queued_seconds_per_step=None)])
    assert queued_seconds() >= 0


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({}, ""),
        ({"other_cores": 0.1, "steal": 0.01, "starved": 0.1, "cores": 2}, ""),
        ({"other_cores": 1.5, "cores": 2}, "other processes used 1.5 of 2 cores"),
        ({"steal": 0.2}, "the host took away 20 % of the cores' time"),
        ({"starved": 0.5}, "workers waited for a core 50 % of the time"),
    ],
)
def test_a_busy_machine_is_described(part, words):
    assert why_busy(part) == words
