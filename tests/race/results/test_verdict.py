"""What a reader takes home, beyond who wins: smaller worlds, who else is level, accuracy."""

import pytest

from paceline.race.results.fields import fields_of
from paceline.race.results.verdict import verdict
from paceline.report.page.sections import spoken
from tests.report.samples import around, graded, record


def starts(strategy, mean, workers=2, **changes):
    return around(mean, [record(strategy, workers, start, **changes) for start in range(1, 7)])


def lines(*groups):
    [field] = fields_of([entry for group in groups for entry in group])
    return spoken(field)


def test_every_number_of_workers_has_its_own_verdict_the_largest_first():
    told = lines(
        *(starts("ddp", 400, 8), starts("allreduce", 300, 8)),
        *(starts("ddp", 200, 4), starts("allreduce", 200, 4)),
        *(starts("ddp", 90), starts("allreduce", 100)),
        starts("limit", 50, 1),
    )
    assert told[:3] == [
        "ddp wins on 8 workers: 1.33x allreduce (95 % interval 1.33 to 1.33).",
        "ddp and allreduce are level on 4 workers: the difference is below 3 % (1.000 to 1.000).",
        "allreduce wins on 2 workers: 1.11x ddp (95 % interval 1.11 to 1.11).",
    ]
    assert not any("on 1 worker" in line for line in told), "nobody raced there"


def test_the_interval_in_the_headline_is_of_the_rival_that_it_names():
    wide = starts("horovod", 100)
    for k, entry in enumerate(wide):
        entry.rate["total"]["mean"] = 90.0 + 20 * (-1) ** k
    told = lines(starts("allreduce", 100), starts("ddp", 95), wide)
    assert told[0] == (
        "Not decided yet on 2 workers: allreduce runs at 1.05x ddp (95 % interval 1.05 to 1.05), 1.14x horovod "
        "(0.88 to 1.48)."
    )
    assert not any("the rate of ddp" in line for line in told), "it is said once"


def test_a_winner_is_compared_with_ddp_and_then_with_the_next():
    told = lines(starts("ddp", 80), starts("allreduce", 100), starts("wfbp", 95))
    assert told[0] == (
        "allreduce wins on 2 workers: 1.25x ddp (95 % interval 1.25 to 1.25), 1.05x wfbp (1.05 to 1.05)."
    )
    assert not any("the rate of ddp" in line for line in told)


def test_contenders_that_are_level_are_compared_with_ddp():
    told = lines(starts("ddp", 80), starts("allreduce", 100), starts("wfbp", 100), starts("horovod", 90))
    assert told[0] == (
        "allreduce and wfbp are level on 2 workers: the difference is below 3 % (1.000 to 1.000); "
        "allreduce runs at 1.25x ddp (95 % interval 1.25 to 1.25)."
    )
    assert told[1] == "allreduce runs at 1.11x the rate of horovod (95 % interval 1.11 to 1.11)."


def test_ddp_that_is_level_but_not_the_nearest_has_its_ratio():
    told = lines(starts("allreduce", 101), starts("wfbp", 100.5), starts("ddp", 100))
    assert told[0].startswith("allreduce wins on 2 workers: 1.010x ddp (95 % interval 1.010 to 1.010), 1.005x wfbp (")


def test_the_ratio_to_ddp_is_a_part_of_the_value():
    [field] = fields_of([*starts("ddp", 80), *starts("allreduce", 100), *starts("wfbp", 95)])
    judged = verdict(field)
    assert (judged.rival, judged.ddp) == ("wfbp", "ddp")
    assert judged.of_ddp == field.find("allreduce", 2).against(field.find("ddp", 2))
    [field] = fields_of([*starts("ddp", 100), *starts("allreduce", 80)])
    assert (verdict(field).ddp, verdict(field).of_ddp) == (None, None), "ddp is the best itself"


def test_all_who_cannot_be_told_from_the_best_are_named():
    told = lines(*(starts(name, 100) for name in ("allreduce", "ddp", "wfbp")), starts("horovod", 80))
    assert told[0].startswith(
        "ddp, allreduce and wfbp are level on 2 workers: the difference is below 3 % (ddp to allreduce: "
    )
    assert told[1].startswith("ddp runs at 1.25x the rate of horovod (")


def test_a_strategy_that_changes_convergence_has_its_accuracy_beside_its_rate():
    told = lines(
        starts("ddp", 100, accuracy=graded(0.93)),
        starts("allreduce", 105, accuracy=graded(0.93)),
        starts("neighbor_allreduce", 150, accuracy=graded(0.5, 0.9125)),
        starts("local_sgd", 140),
    )
    assert (
        "neighbor_allreduce runs at 1.50x the rate of ddp (95 % interval 1.50 to 1.50) but changes convergence: "
        "its accuracy is 0.9125 against 0.9300."
    ) in told
    assert any(line.startswith("local_sgd runs at 1.40x ") and "no winner without accuracy" in line for line in told)
    assert told[0].startswith("allreduce wins")


def test_accuracy_is_the_mean_over_fresh_starts():
    found = [record(start=k, accuracy=graded(0.8 + 0.1 * k)) for k in range(2)]
    [field] = fields_of([*found, record(start=2)])
    assert field.standings[0].accuracy == pytest.approx(0.85)


def test_accuracy_after_more_updates_says_so():
    longer = {"warmup": [0.1] * 4, "seconds": [0.1] * 6, "dropped_blocks": 1}
    told = lines(
        starts("ddp", 100, accuracy=graded(0.9), series={"warmup": [0.1] * 2, "seconds": [0.1] * 6}),
        starts("local_sgd", 140, accuracy=graded(0.8), series=longer),
    )
    assert any("its accuracy is 0.8000 after 12 updates against 0.9000 after 8." in line for line in told)


def test_updates_whose_samples_nobody_counts_do_not_scale():
    rates = (("limit", 50, 1), ("ddp", 45, 2), ("allreduce", 48, 2))
    told = lines(*(starts(*rate, unit="step") for rate in rates))
    assert told[0].startswith("allreduce wins")
    assert not any("ideal scaling" in line for line in told)


def test_accuracy_is_of_the_starts_that_trained_longest():
    lengths = {10: 0.5, 50: 0.9}
    found = [record(start=n, series={"seconds": [0.1] * n}, accuracy=graded(value)) for n, value in lengths.items()]
    [field] = fields_of(found)
    assert field.standings[0].accuracy == pytest.approx(0.9)


def test_a_verdict_is_a_value_with_winner_ties_ratio_and_notes():
    [field] = fields_of([*starts("ddp", 90), *starts("allreduce", 100, verdict="unsteady")])
    judged = verdict(field)
    assert (judged.winner, judged.ties, judged.best, judged.rival) == ("allreduce", (), "allreduce", "ddp")
    assert judged.ratio.centre == pytest.approx(100 / 90)
    assert judged.starts == 6
    assert judged.notes == ("6 of 6 starts of allreduce were unsteady",)


def test_a_contender_with_too_few_starts_is_not_called_level():
    [field] = fields_of([*starts("ddp", 100), *starts("allreduce", 100), *starts("wfbp", 99)[:3]])
    judged = verdict(field)
    assert (judged.end, judged.ties, judged.undecided) == ("few", (), ("wfbp",))


def test_a_field_where_nobody_ended_well_has_no_verdict():
    [field] = fields_of(starts("limit", 50, 1))
    judged = verdict(field, 2)
    assert (judged.winner, judged.ties, judged.ratio) == (None, (), None)
    assert judged.headline == "No verdict on 2 workers: no contender ended well."
