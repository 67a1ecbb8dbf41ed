"""Figures that scripts log, combined over ranks."""

from paceline.measure.combining import metrics_of


def test_a_figure_is_the_mean_over_the_ranks_that_logged_it():
    ranks = [{"loss": [(1, 2.0), (2, 1.0)], "accuracy": [(2, 0.5)]}, {"loss": [(1, 4.0)]}]
    assert metrics_of(ranks) == {
        "loss": {"steps": [1, 2], "values": [3.0, 1.0], "ranks": 2},
        "accuracy": {"steps": [2], "values": [0.5], "ranks": 1},
    }


def test_without_logged_figures_there_are_none():
    assert metrics_of([{}, {}]) == {}
