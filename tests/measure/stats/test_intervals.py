import random
from statistics import fmean

import pytest

from paceline.cluster.environment import capture
from paceline.measure.breakdown import breakdown, over_ranks
from paceline.measure.meter import PARTS, Meter
from paceline.measure.stats.intervals import mean_interval, percentile, ratio_interval, standard_error, summary, t95


@pytest.mark.parametrize(("degrees", "expected"), [(1, 12.706), (4, 2.776), (20, 2.086), (30, 2.042), (120, 1.980)])
def test_t_quantiles_are_those_of_the_tables(degrees, expected):
    assert t95(degrees) == pytest.approx(expected, abs=0.002)


@pytest.mark.parametrize("repeats", [3, 5, 10])
def test_intervals_cover_the_truth_as_often_as_they_say(repeats):
    dice = random.Random(7)
    hits = 0
    for _ in range(2000):
        interval = mean_interval([dice.gauss(100, 5) for _ in range(repeats)])
        hits += interval.low <= 100 <= interval.high
    assert 0.93 <= hits / 2000 <= 0.97


def test_paired_ratios_cancel_what_both_sides_met():
    dice = random.Random(1)
    noise = [dice.uniform(0.5, 2) for _ in range(8)]
    interval = ratio_interval([1.1 * n for n in noise], noise)
    assert interval.centre == pytest.approx(1.1)
    assert interval.high - interval.low < 1e-9


def test_one_number_has_no_interval():
    assert mean_interval([5.0]).low is None
    assert standard_error([5.0]) == 0.0
    with pytest.raises(ValueError, match="at least two"):
        t95(0)


def test_percentiles_are_values_that_were_seen():
    values = list(range(1, 101))
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert summary([3.0, 1.0, 2.0])["median"] == 2.0


def test_parts_of_a_step_add_up_to_the_step():
    ticks = iter(range(1000))
    meter = Meter(clock=lambda: float(next(ticks)))
    for _ in range(3):
        meter.start()
        meter.lap("data")
        meter.lap("forward")
        meter.add("exposed", 0.5)
        meter.stop()
    found = breakdown(meter.steps, meter.parts)
    assert found["data"] == found["forward"] == 1.0
    assert sum(found[part] for part in PARTS) + found["other"] == found["step"] == 3.0
    assert over_ranks([found, found]) == found


def test_the_environment_has_no_secret(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("SOME_URL", "https://user:hunter2@example.org")
    assert "hunter2" not in str(capture())
    assert fmean([capture()["cores"]]) >= 1
