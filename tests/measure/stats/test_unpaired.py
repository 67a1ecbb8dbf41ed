import random

import pytest

from paceline.measure.stats.unpaired import unpaired_ratio


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


def test_starts_of_one_configuration_are_rarely_called_different():
    """A number is a start: 3 % around the truth, measured in 5 blocks with 1 %. Welch at 95 % errs in 5 of 100."""
    noise = random.Random(3)
    wrong = 0
    for _ in range(1000):
        a, b = ([100 * noise.gauss(1, 0.03) * noise.gauss(1, 0.01 / 5**0.5) for _ in range(5)] for _ in range(2))
        ratio = unpaired_ratio(a, b)
        wrong += not ratio.low <= 1 <= ratio.high
    assert wrong <= 70
