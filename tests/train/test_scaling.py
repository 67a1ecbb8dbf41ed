"""The loss scale falls after an overflow and rises after some good steps."""

import pytest

from paceline.train.scaling import LossScale


@pytest.mark.parametrize(
    ("finite", "values"),
    [
        ([True] * 4, [2, 4, 4, 8]),
        ([False, False, False], [1, 1, 1]),  # never below one
        ([True, False, True, True], [2, 1, 1, 2]),  # good steps are counted anew
    ],
)
def test_a_scale_doubles_after_its_patience_and_halves_at_once(finite, values):
    scale = LossScale(value=2.0, patience=2)
    seen = []
    for step in finite:
        scale.record(step)
        seen.append(scale.value)
    assert seen == values
    assert scale.skipped == finite.count(False)
