import random

import pytest

from paceline.comm.link import SIZES, fit, measure, sizes_within
from paceline.types import Link


def test_a_straight_line_is_found_exactly():
    link = Link(3e-4, 1.2e8)
    found = fit(SIZES, [link.seconds(size) for size in SIZES])
    assert (found.latency, found.bandwidth) == pytest.approx((3e-4, 1.2e8))


def test_noise_on_large_messages_does_not_drown_the_latency():
    dice, link = random.Random(0), Link(2e-4, 1e8)
    found = measure(lambda size: link.seconds(size) * dice.uniform(0.97, 1.03), SIZES)
    assert found.latency == pytest.approx(2e-4, rel=0.1)
    assert found.bandwidth == pytest.approx(1e8, rel=0.1)


def test_a_link_is_never_negative():
    for seconds in ([1e-3, 1e-3, 1e-3], [3e-3, 2e-3, 1e-3], [1e-6, 1e-2, 1.0], [0.0, 0.0, 0.0]):
        found = fit([1000, 2000, 3000], seconds)
        assert found.latency >= 0
        assert found.bandwidth > 0


def test_small_models_are_measured_with_what_they_have():
    assert sizes_within(100) == (6, 100)
    assert sizes_within(1) == (1,)
    assert sizes_within(1 << 30) == SIZES
