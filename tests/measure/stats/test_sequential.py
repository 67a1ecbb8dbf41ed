"""Simulated races with optional stopping: how often the answers are wrong, and how soon they come.

The noise is that of machines on which races ran: blocks of steps vary by 5 %, neighbors in time resemble each other,
some minutes are slow for all, and every start shifts all contenders together and each of them a little.
"""

import itertools
import math

import numpy as np
import pytest

from paceline.measure.stats.intervals import Interval
from paceline.measure.stats.pairing import best_turns, inner_error, log_ratio, trimmed_mean
from paceline.measure.stats.sequential import (
    LEAST_STARTS,
    answer,
    answers,
    anytime_quotient,
    anytime_ratio,
    bounds,
    reach,
    starts_needed,
)

RACES, STARTS, TURNS = 1000, 30, 10
BLOCK = 0.05  # deviation of the time of a block
TOGETHER = 0.05  # a start shifts all contenders by so much
SPREAD = 0.02  # and the ratio of each pair by so much
NOISES = ("normal", "ar1", "slow minutes", "shifting starts")


def simulated(speeds, *, noise, seed, spread=SPREAD, races=RACES, starts=STARTS):
    """Return log ratios of all pairs: races x pairs x starts. `speeds` are the true rates."""
    dice, count = np.random.default_rng(seed), len(speeds)
    blocks = starts * TURNS * count
    machine = BLOCK * dice.standard_normal((races, blocks))
    if noise == "ar1":
        for k in range(1, blocks):
            machine[:, k] = 0.6 * machine[:, k - 1] + 0.8 * machine[:, k]
    if noise == "slow minutes":  # one block in ten begins a stretch of five blocks that are 30 % slower
        begins = dice.random((races, blocks)) < 0.1
        slow = sum(np.roll(begins, k, axis=1) for k in range(5)) > 0
        machine += math.log(1.3) * slow
    # The blocks of a turn follow each other in an order drawn anew.
    order = dice.random((races, starts, TURNS, count)).argsort(axis=-1)
    seconds = np.take_along_axis(machine.reshape(races, starts, TURNS, count), order, axis=-1)
    seconds += spread / math.sqrt(2) * dice.standard_normal((races, starts, 1, count)) - np.log(speeds)
    if noise == "shifting starts":
        seconds += TOGETHER * dice.standard_normal((races, starts, 1, 1))
    pairs = [(a, b) for a in range(count) for b in range(a)]
    return np.stack([trimmed_mean(seconds[..., b] - seconds[..., a]) for a, b in pairs], axis=1)


def first_answers(logs, margin=0.03):
    """Return what each pair claimed first (1 faster, -1 slower, 2 level, 0 open), and after which start.

    Every start is followed by a look, and a pair stops at its first answer.
    """
    races, pairs, starts = logs.shape
    claimed, when = np.zeros((races, pairs), int), np.full((races, pairs), starts + 1)
    for count in range(LEAST_STARTS, starts + 1):
        faster, slower, level = answers(*bounds(logs[..., :count], 0.05 / pairs), margin)
        fresh = (claimed == 0) & (faster | slower | level)
        claimed[fresh] = (faster * 1 - slower * 1 + level * 2)[fresh]
        when[fresh] = count
    return claimed, when


@pytest.mark.parametrize("noise", NOISES)
def test_the_same_contender_three_times_is_seldom_called_different(noise):
    claimed, _ = first_answers(simulated([1, 1, 1], noise=noise, seed=1), margin=0.0)
    assert (np.abs(claimed) == 1).any(axis=1).mean() <= 0.065


def test_looking_after_every_start_with_an_ordinary_t_interval_is_wrong_far_too_often():
    """The control: without the confidence sequence the simulation finds the inflated error."""
    from paceline.measure.stats.intervals import t95

    logs = simulated([1, 1], noise="normal", seed=1)[:, 0]
    wrong = np.zeros(RACES, bool)
    for count in range(LEAST_STARTS, STARTS + 1):
        part = logs[:, :count]
        wrong |= np.abs(part.mean(1)) > t95(count - 1) * part.std(1, ddof=1) / math.sqrt(count)
    assert wrong.mean() > 0.15


@pytest.mark.parametrize("noise", NOISES)
def test_a_difference_of_five_percent_is_found_within_thirteen_starts(noise):
    claimed, when = first_answers(simulated([1, 1.05], noise=noise, seed=2), margin=0.03)
    assert ((claimed == 1) & (when <= 13)).mean() >= 0.95


def test_on_a_machine_whose_starts_vary_by_five_percent_it_takes_thirty_starts():
    logs = simulated([1, 1.05], noise="normal", seed=3, spread=0.046, starts=40, races=400)
    claimed, when = first_answers(logs, margin=0.03)
    assert ((claimed == 1) & (when <= 30)).mean() >= 0.95


@pytest.mark.parametrize("noise", NOISES)
def test_a_difference_of_six_percent_is_seldom_called_level_within_three(noise):
    claimed, _ = first_answers(simulated([1, 1.06], noise=noise, seed=4), margin=0.03)
    assert (claimed == 2).mean() <= 0.065


@pytest.mark.parametrize("noise", NOISES)
def test_a_difference_as_large_as_the_margin_is_seldom_called_level(noise):
    claimed, _ = first_answers(simulated([1, 1.03], noise=noise, seed=4), margin=0.03)
    assert (claimed == 2).mean() <= 0.065


def test_an_ordinary_t_interval_calls_a_difference_as_large_as_the_margin_level_far_too_often():
    """The control: the simulation finds the error of looking after every start here, too."""
    from paceline.measure.stats.intervals import t95

    logs = simulated([1, 1.03], noise="normal", seed=4)[:, 0]
    level = np.zeros(RACES, bool)
    for count in range(LEAST_STARTS, STARTS + 1):
        part = logs[:, :count]
        level |= np.abs(part.mean(1)) + t95(count - 1) * part.std(1, ddof=1) / math.sqrt(count) < math.log(1.03)
    assert level.mean() > 0.08


def test_equal_contenders_are_called_level_in_the_end():
    claimed, when = first_answers(simulated([1, 1], noise="normal", seed=5, starts=45), margin=0.03)
    assert ((claimed == 2) & (when <= 45)).mean() >= 0.95


def test_bounds_contain_the_truth_after_every_start_at_once():
    logs = simulated([1, 1.1], noise="shifting starts", seed=6)[:, 0]
    missed = np.zeros(RACES, bool)
    for count in range(LEAST_STARTS, STARTS + 1):
        low, high = bounds(logs[:, :count])
        missed |= (low > math.log(1.1)) | (high < math.log(1.1))
    assert missed.mean() <= 0.065


def test_fewer_than_three_starts_have_no_interval_and_decide_nothing():
    assert math.isinf(reach(2, 0.05))
    found = anytime_ratio([0.1, 0.1])
    assert (found.low, found.high) == (None, None)
    assert answer(found, 0.03) == answer(None, 0.03) == "open"


def test_more_starts_and_fewer_pairs_make_it_narrower():
    widths = [reach(count, 0.05) for count in range(3, 60)]
    assert all(b < a for a, b in itertools.pairwise(widths))
    assert reach(8, 0.05) < reach(8, 0.05 / 3)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.01, 1.2, "faster"),
        (0.8, 0.99, "slower"),
        (0.98, 1.02, "level"),
        (0.98, 1.07, "open"),
        (1.001, 1.02, "faster"),
    ],
)
def test_an_interval_has_one_answer(low, high, expected):
    assert answer(Interval(1.0, low, high), 0.03) == expected


def test_sides_that_never_met_have_wider_bounds_than_pairs():
    dice = np.random.default_rng(0)
    speed = 0.05 * dice.standard_normal(12)
    over, under = 0.1 + speed + 0.01 * dice.standard_normal(12), speed + 0.01 * dice.standard_normal(12)
    paired, apart = anytime_ratio(list(over - under)), anytime_quotient(list(over), list(under))
    assert paired.low > 1
    assert apart.low < paired.low
    assert apart.high > paired.high


def test_the_starts_that_settle_a_pair_are_foreseen():
    dice = np.random.default_rng(1)
    logs = list(0.03 + 0.03 * dice.standard_normal(6))
    needed = starts_needed(logs, 1, 0.03)
    assert needed > 6
    assert starts_needed([0.3, 0.31, 0.29, 0.3, 0.3], 1, 0.03) == 5
    assert starts_needed([0.1, 0.2], 1, 0.03) is None


def test_a_block_in_which_the_machine_did_something_else_is_left_out():
    calm = [0.1] * 10
    assert log_ratio(calm, [0.12] * 9 + [5.0]) == pytest.approx(math.log(1.2))
    assert inner_error([0.1, 0.1], [0.1, 0.1]) is None
    assert inner_error(calm, calm) == 0


def test_a_start_is_as_long_as_its_costs_and_spreads_suggest():
    assert best_turns(0.01, 10, 0.02, 6.0, 0.5) < best_turns(0.04, 10, 0.02, 6.0, 0.5)
    assert best_turns(0.02, 16, 0.02, 4.0, 1.0) == pytest.approx(8.0)
    assert math.isinf(best_turns(0.01, 10, 0.0, 6.0, 0.5))
