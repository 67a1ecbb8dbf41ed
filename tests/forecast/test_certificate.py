"""What a certificate concludes from its rows."""

import random
from dataclasses import replace

import pytest

from paceline.errors import WrongCommand
from paceline.forecast.calibrate import calibrate
from paceline.forecast.cases import lab_cases, lab_profile, real_cases
from paceline.forecast.certificate import FILE, Certificate, Checked, kendall, read_certificate
from paceline.forecast.fit import fit
from paceline.forecast.machines import read_machines
from paceline.forecast.study import study
from paceline.run.compose.compose import axes_of
from paceline.run.run import Run


def row(k=0, measured=100.0, forecast=100.0, *, width=0.01, group="a", strategy="bsp"):
    return Checked(
        name=f"row {k}",
        kind="lab",
        group=group,
        strategy=strategy,
        model="mlp",
        workers=4,
        bandwidth=25e6,
        measured=measured,
        low=measured * (1 - width),
        high=measured * (1 + width),
        forecast=forecast,
        naive=2 * measured,
    )


def test_errors_order_and_regret():
    rows = [row(k, 100 + k, 1.1 * (100 + k)) for k in range(6)]
    found = Certificate(tuple(rows))
    assert found.rank_correlation() == 1
    assert found.regret() == 0
    assert rows[0].error == pytest.approx(0.1)
    assert rows[0].naive_error == 1
    assert found.interval() == pytest.approx((1 / 1.1, 1 / 1.1))


def test_regret_is_how_much_slower_the_advised_strategy_is():
    rows = [row(k, 100 + k, 200.0 if k == 0 else 100.0) for k in range(6)]
    assert Certificate(tuple(rows)).regret() == pytest.approx(0.05)


def test_a_row_that_was_not_measured_well_does_not_count():
    rows = [row(k) for k in range(5)] + [row(9, 50.0, width=0.2)]
    found = Certificate(tuple(rows))
    assert [each.name for each in found.unmeasured] == ["row 9"]
    assert found.interval() == (1, 1)


def test_a_few_rows_give_no_interval():
    found = Certificate((row(),))
    assert found.interval() is None
    assert found.rank_correlation() is None
    assert "too few" in found.sentence()


def test_a_certificate_survives_its_file(tmp_path):
    found = Certificate(tuple(row(k) for k in range(5)), "box", "today", ("a note",))
    (tmp_path / FILE).write_text(found.to_json())
    assert read_certificate(tmp_path / FILE) == found
    assert read_certificate(tmp_path / "none") is None


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 9}', '{"schema": 1, "rows": [{"name": 1}]}'])
def test_a_damaged_certificate_is_refused(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(WrongCommand, match="is no certificate"):
        read_certificate(tmp_path / FILE)


def test_a_forecast_beyond_what_was_checked_says_so():
    machines = read_machines("machines(nodes=16, ranks=8, bandwidth=25gbit)")
    known = calibrate("mlp", step=0.1)
    beyond = study(Run(model="mlp"), ["bsp", "wfbp"], [128], machines.fabric(), known)
    told = list(Certificate(tuple(row(k) for k in range(5))).extrapolations(beyond))
    assert told == ["128 workers; checked up to 4", "25 Gbit/s; checked between 0.2 and 0.2", "strategies wfbp"]


def test_kendall_counts_pairs():
    assert kendall([1, 2, 3], [10, 20, 30]) == 1
    assert kendall([1, 2, 3], [30, 20, 10]) == -1
    assert kendall([1, 1], [1, 2]) == 1


def test_figures_are_found_again():
    truth = {"a": 3e-4, "b": 2e8}
    sizes = [1e3, 1e4, 1e5, 1e6, 1e7]

    def seconds(values):
        return [values["a"] + size / values["b"] for size in sizes]

    found = fit({"a": 1e-3, "b": 1e8}, seconds, seconds(truth))
    assert found["a"] == pytest.approx(truth["a"], rel=0.05)
    assert found["b"] == pytest.approx(truth["b"], rel=0.05)


def test_a_figure_that_nothing_shows_keeps_its_guess():
    found = fit({"a": 2.0, "b": 5.0}, lambda values: [values["a"]], [3.0])
    assert found["a"] == pytest.approx(3.0, rel=0.02)
    assert found["b"] == pytest.approx(5.0, rel=0.1)


def test_a_check_is_large_enough_and_holds_out_models_and_rates(tmp_path):
    lab, real = lab_cases(tmp_path, quick=False), real_cases(quick=False)
    held = [case for case in (*lab, *real) if case.held]
    assert len(held) >= 40
    assert sum(case.kind == "real" for case in held) >= 10
    assert len({case.strategy for case in held}) >= 10
    labs = {case.run.lab for case in lab if case.held}, {case.run.lab for case in lab if not case.held}
    assert not labs[0] & labs[1]
    assert len({case.name for case in (*lab, *real)}) == len(lab) + len(real)


def test_every_case_of_a_check_can_be_composed(tmp_path):
    for case in (*lab_cases(tmp_path, quick=False), *real_cases(quick=False)):
        if case.run.reference is None:
            axes_of(case.run)


def test_replayed_models_have_their_own_tensors():
    assert sum(tensor.numel for tensor in lab_profile("mobilenet_v2").layout) == 3_504_872
    assert len(lab_profile("calibration").layout) == 60


def test_order_survives_noise_that_is_smaller_than_differences():
    chance = random.Random(1)
    rows = [row(k, 100 * 1.2**k, 100 * 1.2**k * chance.uniform(0.95, 1.05)) for k in range(8)]
    assert Certificate(tuple(rows)).rank_correlation() == 1
    assert Certificate(tuple(replace(r, forecast=1e3 / r.forecast) for r in rows)).rank_correlation() == -1
