import random

import pytest

from paceline.bench.ratios import unpaired_ratio


def test_the_ratio_lies_in_its_interval():
    found = unpaired_ratio([10.0, 10.2, 9.9], [5.0, 5.1, 4.9])
    assert found.low < found.centre < found.high
    assert found.centre == pytest.approx(2, rel=0.02)


def test_one_number_gives_no_interval():
    found = unpaired_ratio([10.0], [5.0, 5.1])
    assert (found.low, found.high) == (None, None)


def test_equal_numbers_give_a_point():
    found = unpaired_ratio([4.0, 4.0], [2.0, 2.0])
    assert (found.low, found.centre, found.high) == (2.0, 2.0, 2.0)


def test_a_run_against_itself_is_rarely_called_different():
    """Welch at 95 %: about 5 of 100 white-noise pairs; 4 standard errors of 1,000 trials are 2.8 points."""
    noise = random.Random(3)
    wrong = 0
    for _ in range(1000):
        a, b = ([noise.gauss(100, 3) for _ in range(5)] for _ in range(2))
        ratio = unpaired_ratio(a, b)
        wrong += not ratio.low <= 1 <= ratio.high
    assert wrong <= 78
