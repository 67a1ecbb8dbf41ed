"""Forecasts of published tables from published facts."""

from statistics import median

import pytest

from paceline.race.published import load
from paceline.race.published._forecast import SYSTEMS, forecasts_of
from paceline.race.published._sheet import Benchmark
from paceline.race.reproduce import _system


@pytest.mark.parametrize("name", ["dlaas", "tensorpack"])
def test_rows_are_forecast_better_than_naively(name):
    found = forecasts_of(name, load(name))
    errors, naive = ([getattr(f, key) for f in found.judged] for key in ("error", "naive_error"))
    assert median(errors) <= 0.15
    assert median(errors) < median(naive)
    assert "calibrating" in found.sentences()[0]


def test_the_calibrating_row_is_met_and_left_out():
    found = forecasts_of("dlaas", load("dlaas"))
    calibrating = [f for f in found.rows if f.task.calibrates]
    assert [f.task.workers for f in calibrating] == [4] * 4
    assert not any(f.task.calibrates for f in found.judged)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_forecast_stands_beside_a_published_row(name):
    published = load(name)
    system: Benchmark = _system(name)
    rows = {(sheet.title, row.name): row.rate for sheet in system.sheets(published) for row in sheet.rows}
    groups, _ = SYSTEMS[name](published)
    tasks = [task for group, _ in groups for task in group]
    assert tasks
    for task in tasks:
        assert rows[task.sheet, task.row] == task.rate
    assert any(task.calibrates for task in tasks)


def test_rows_that_no_model_explains_are_chosen_by_published_figures_and_counted_apart():
    groups, _ = SYSTEMS["ddl_benchmarks"](load("ddl_benchmarks"))
    apart = {(task.sheet, task.row) for tasks, _ in groups for task in tasks if not task.explained}
    assert ("bert_large: 100 GbE TCP, 32 GPUs", "WFBP-PS") in apart  # as on 10 GbE within 2 %
    assert ("bert_large: 100 GbE TCP, 32 GPUs", "ByteScheduler-PS") not in apart
    everything, explained = forecasts_of("bluefog", load("bluefog")).sentences()
    assert everything.startswith("forecast of 16 rows")
    assert explained.startswith("without the 7 rows that no model explains")
