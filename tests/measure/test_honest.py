"""The statistics keep their promises on simulated benchmarks, where the truth is known. Seeds are fixed."""

import numpy as np
import pytest

from paceline.measure.stats.intervals import (
    autocorrelation,
    block_interval,
    block_length,
    jitter,
    leaning,
    mean_interval,
    ratio_interval,
    step_line,
)
from paceline.measure.stats.steady import settle, warm_up

TRUTH, STEPS = 100.0, 10


def noise(dice, shape, alike=0.0):
    """Normal noise along the last axis, neighbors correlated by `alike`."""
    drawn = dice.standard_normal(shape)
    for k in range(1, shape[-1]):
        drawn[..., k] = alike * drawn[..., k - 1] + np.sqrt(1 - alike**2) * drawn[..., k]
    return drawn


def covered(intervals):
    return np.mean([interval.holds(TRUTH) for interval in intervals])


# intervals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeats", [5, 10])
def test_intervals_over_repeats_cover_the_truth_as_often_as_they_say(repeats):
    rates = TRUTH + 5 * noise(np.random.default_rng(repeats), (500, repeats))
    assert 0.92 <= covered(map(mean_interval, rates.tolist())) <= 0.98


@pytest.mark.parametrize("repeats", [5, 10])
def test_steps_that_lean_on_each_other_inside_a_repeat_do_no_harm(repeats):
    steps = TRUTH + 5 * noise(np.random.default_rng(repeats), (500, repeats, STEPS), 0.6)
    assert 0.92 <= covered(map(mean_interval, steps.mean(axis=2).tolist())) <= 0.98


@pytest.mark.parametrize("repeats", [5, 10])
def test_correlation_through_a_whole_run_leaves_enough_cover(repeats):
    """`paceline run`: its repeats are blocks of one process, and noise goes on from one to the next."""
    steps = TRUTH + 5 * noise(np.random.default_rng(repeats), (500, repeats * STEPS), 0.6)
    blocks = steps.reshape(500, repeats, STEPS).mean(axis=2)
    assert covered(map(mean_interval, blocks.tolist())) >= 0.88
    assert covered(map(block_interval, steps.tolist())) >= 0.88
    assert np.mean([leaning(series) for series in steps.tolist()]) >= 0.95


@pytest.mark.parametrize("repeats", [5, 10])
def test_the_warning_of_correlation_seldom_comes_without_cause(repeats):
    dice = np.random.default_rng(repeats)
    for count in (repeats, repeats * STEPS):
        assert np.mean([leaning(series) for series in noise(dice, (500, count)).tolist()]) <= 0.10


def test_correlated_repeats_get_a_warning_where_enough_of_them_show_it():
    """Nothing can be told from 5; from 20 on, an interval covers or warns."""
    rates = TRUTH + 5 * noise(np.random.default_rng(3), (500, 20), 0.6)
    assert np.mean([mean_interval(row).holds(TRUTH) or leaning(row) for row in rates.tolist()]) >= 0.88


@pytest.mark.parametrize("count", [20, 50, 200])
def test_block_intervals_cover_plain_noise_too(count):
    series = TRUTH + 5 * noise(np.random.default_rng(count), (500, count))
    assert 0.92 <= covered(map(block_interval, series.tolist())) <= 0.98


def test_blocks_are_longer_where_neighbors_are_alike():
    dice = np.random.default_rng(0)
    plain, alike = noise(dice, (400,)), noise(dice, (400,), 0.8)
    assert autocorrelation(plain.tolist()) == pytest.approx(0, abs=0.1)
    assert autocorrelation(alike.tolist()) == pytest.approx(0.8, abs=0.1)
    assert block_length(alike.tolist()) > 3 * block_length(plain.tolist())


# verdicts -------------------------------------------------------------------------------------------


def differs(over, under):
    return not ratio_interval(over, under).holds(1.0)


@pytest.mark.parametrize("repeats", [5, 10])
def test_a_configuration_against_itself_is_seldom_called_different(repeats):
    dice = np.random.default_rng(repeats)
    pairs = TRUTH + 3 * noise(dice, (1000, 2, repeats))
    assert np.mean([differs(*pair) for pair in pairs.tolist()]) <= 0.07


def test_five_percent_under_one_percent_of_noise_are_found():
    dice = np.random.default_rng(5)
    pairs = TRUTH * (1 + 0.01 * noise(dice, (500, 2, 10)))
    assert np.mean([differs((1.05 * a).tolist(), b.tolist()) for a, b in pairs]) >= 0.95


# steady or not --------------------------------------------------------------------------------------


def called_steady(make, seed, count=200):
    dice = np.random.default_rng(seed)
    return np.mean([settle(0.1 * make(dice)).steady for _ in range(count)])


def level(dice, steps=50, relative=0.02):
    return 1 + relative * dice.standard_normal(steps)


def test_noise_around_one_level_is_steady():
    assert called_steady(level, 1) >= 0.95
    assert called_steady(lambda dice: level(dice, relative=0.1), 2) >= 0.95
    assert called_steady(lambda dice: 1 + 0.02 * noise(dice, (50,), 0.6), 3) >= 0.90
    assert called_steady(lambda dice: level(dice) + 0.5 * (dice.random(50) < 0.04), 4) >= 0.90


@pytest.mark.parametrize(("change", "relative"), [(0.05, 0.01), (0.10, 0.02), (-0.10, 0.02), (0.5, 0.02)])
def test_a_drift_is_not_steady(change, relative):
    assert called_steady(lambda dice: level(dice, relative=relative) + np.linspace(0, change, 50), 5) <= 0.05


@pytest.mark.parametrize(("apart", "share"), [(0.10, 0.5), (0.3, 0.3), (1.0, 0.3)])
def test_two_modes_are_not_steady(apart, share):
    assert called_steady(lambda dice: level(dice, relative=0.01) + apart * (dice.random(50) < share), 6) <= 0.05


def test_a_level_that_changes_half_way_is_not_steady():
    assert called_steady(lambda dice: level(dice) + 0.15 * (np.arange(50) > 24), 7) <= 0.05


@pytest.mark.parametrize("slow", [1.5, 3.0, 20.0])
def test_five_slow_steps_are_left_out_and_the_centre_is_right(slow):
    dice = np.random.default_rng(8)
    for _ in range(100):
        series = 0.1 * level(dice, 40, 0.01)
        series[:5] *= slow
        found = settle(series)
        assert found.steady, found.why
        assert 5 <= found.start <= 8
        assert series[found.start :].mean() == pytest.approx(0.1, rel=0.01)


def test_what_is_steady_from_the_first_step_loses_nothing_much():
    dice = np.random.default_rng(9)
    assert np.mean([warm_up(level(dice)) for _ in range(200)]) < 0.1


def test_steps_that_repeat_every_few_are_judged_together():
    """Local SGD exchanges at every fourth step, which takes longer: that is its way, and not unsteady."""
    dice = np.random.default_rng(10)
    series = level(dice, 60, 0.01) + 0.5 * (np.arange(60) % 4 == 3)
    assert not settle(series).steady
    assert settle(series, period=4).steady


def test_a_series_that_is_too_short_is_not_called_steady():
    found = settle([0.1] * 5)
    assert (found.steady, found.why) == (False, "5 steps are too few to tell")
    assert settle([0.1] * 20).steady


# the published figures ------------------------------------------------------------------------------


def test_jitter_is_the_deviation_of_normal_noise_and_does_not_see_outliers():
    values = np.random.default_rng(0).normal(50, 2, 4001)
    assert jitter(values.tolist()) == pytest.approx(2, rel=0.05)
    assert jitter([10.0] * 9 + [1000.0]) == 0.0


def test_a_step_line_has_the_three_figures_of_tf_cnn_benchmarks():
    line = step_line(64, [0.5, 0.25, 0.5, 1.0])
    assert line.mean == pytest.approx(64 / 0.5625)
    # rates 128, 256, 128, 64: population deviation 69.74, divided by the root of 4
    assert line.uncertainty == pytest.approx(34.87, abs=0.01)
    assert line.jitter == pytest.approx(1.4826 * 32)
