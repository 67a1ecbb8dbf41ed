"""Learning rates over time."""

import pytest

from paceline.errors import BadMember, Refused, UnknownName
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.workload.rates import MENU


def rates(text, times, *, own=0.4, batch=512, epochs=10):
    schedule = MENU.make(text)
    return [schedule.rate(own, batch, time, epochs) for time in times]


def test_the_base_is_per_256_samples_and_without_it_the_optimizer_decides():
    assert rates("constant(base=0.1)", [0, 5], batch=384) == pytest.approx([0.15, 0.15])
    assert rates("constant", [0, 5]) == [0.4, 0.4]


def test_warm_up_is_linear_from_its_first_rate():
    assert rates("constant(warmup=4)", [0, 1, 3, 4, 9]) == pytest.approx([0, 0.1, 0.3, 0.4, 0.4])
    assert rates("constant(warmup=4, first=0.5)", [0, 2, 4]) == pytest.approx([0.2, 0.3, 0.4])


def test_steps_multiply_at_their_epochs():
    assert rates("steps(at=3/6, factor=0.5)", [0, 2.99, 3, 6, 9]) == pytest.approx([0.4, 0.4, 0.2, 0.1, 0.1])
    assert MENU.make("steps").at == "30/60/80"


def test_a_cosine_falls_to_its_end_after_warm_up():
    assert rates("cosine(warmup=2, end=0.1)", [2, 6, 10]) == pytest.approx([0.4, 0.22, 0.04])


@pytest.mark.parametrize("word", MENU.names())
def test_every_schedule_prints_as_it_is_written(word):
    made = MENU.make(f"{word}(base=0.1, warmup=5)")
    assert MENU.make(str(made)) == made
    assert str(made) == f"{word}(base=0.1, warmup=5)"


@pytest.mark.parametrize("text", ["steps(at=3/1)", "steps(at=x)", "constant(first=2)", "cosine(warmup=-1)"])
def test_wrong_settings_are_refused(text):
    with pytest.raises(BadMember):
        MENU.make(text)


def test_a_run_with_an_unknown_schedule_is_refused_before_any_worker_starts():
    with pytest.raises(UnknownName):
        MENU.make("linear")
    with pytest.raises(Refused, match="did you mean cosine"):
        compose(Run(lr_schedule="cosin", epochs=1))
