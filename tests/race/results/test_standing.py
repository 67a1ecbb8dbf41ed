import pytest

from paceline.race.results.fields import fields_of
from paceline.race.results.standing import CHANGES, SAME, contender, group, setting, spoken_setting
from paceline.race.results.verdict import leaders, verdict
from paceline.report.page.sections import spoken
from paceline.run.run import Run
from tests.report.samples import around, cell, race, record

TWO_CORES = {"cores": 2}


def test_a_contender_is_named_as_people_name_it():
    assert contender(Run()) == "allreduce"
    assert contender(Run(strategy="horovod")) == "horovod"
    assert contender(Run(schedule="wfbp", compress="cast(bf16)", comm="gloo")) == "wfbp + cast(bf16) over gloo"


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (Run(), SAME),
        (Run(strategy="ddp"), SAME),
        (Run(schedule="wfbp"), SAME),
        (Run(compress="cast(bf16)"), SAME),
        (Run(strategy="neighbor_allreduce"), CHANGES),
        (Run(rule="atc(every=4)"), CHANGES),
        (Run(rule="server", exchange="ps(servers=1, colocated=false)"), SAME),
        (Run(rule="server(staleness=async)", exchange="ps(servers=1, colocated=false)"), CHANGES),
        (Run(strategy="a strategy of tomorrow"), CHANGES),
    ],
)
def test_what_changes_convergence_is_a_group_of_its_own(run, expected):
    assert group(run) == expected


def test_lengths_and_seeds_are_no_part_of_the_question():
    first, second = Run(batch_size=8, steps=3, seed=1), Run(global_batch=8, repeats=9, strategy="ddp")
    assert setting(first, TWO_CORES) == setting(second, TWO_CORES)
    assert setting(Run(batch_size=8), TWO_CORES) != setting(Run(batch_size=16), TWO_CORES)


def test_one_worker_is_a_baseline_only_with_the_threads_that_a_worker_has():
    two, one, alone = Run(workers=2), Run(workers=1, threads=1), Run(workers=1)
    assert setting(two, TWO_CORES) == setting(one, TWO_CORES) != setting(alone, TWO_CORES)
    told = {**TWO_CORES, "variables": {"OMP_NUM_THREADS": "1"}}
    assert setting(alone, told) == setting(one, TWO_CORES), "a variable says how many, too"


def test_a_setting_is_spoken_with_what_is_unusual():
    assert spoken_setting(Run(model="mlp", precision="bf16")) == "mlp, batch 32 per worker, precision bf16"


def test_fresh_starts_of_a_contender_are_one_standing():
    [field] = fields_of(race())
    assert field.worlds == [1, 2, 4]
    assert {len(standing.records) for standing in field.standings} == {5}
    assert field.baseline is not None
    assert (field.baseline.workers, field.baseline.name) == (1, "allreduce")
    low, high = field.find("ddp", 2).rate.low, field.find("ddp", 2).rate.high
    assert low < field.find("ddp", 2).rate.centre < high


def test_a_failed_run_has_no_standing():
    assert fields_of([record(verdict="failed", rate={})]) == []


def test_a_single_start_shows_the_interval_inside_it():
    [field] = fields_of([record().model_copy(update={"race": {}})])
    assert field.standings[0].over == "3 repeats of one start"
    assert field.standings[0].rate.low == pytest.approx(field.standings[0].rate.centre * 0.98)


def test_the_winner_is_named_with_its_margin():
    [field] = fields_of(race(worlds=(2,), strategies=("limit", "ddp", "allreduce")))
    assert verdict(field).headline.startswith("allreduce wins on 2 workers: 1.1")
    assert any("of the limit" in line for line in spoken(field))


def test_what_cannot_be_separable_is_not_called_a_win():
    same = [record("allreduce", 2, start) for start in range(1, 6)]
    other = [record("horovod", 2, start, rate=same[start - 1].rate) for start in range(1, 6)]
    for k, entry in enumerate(other):
        entry.rate["total"]["mean"] *= 1 + 0.001 * (-1) ** k
    [field] = fields_of(same + other)
    assert (verdict(field).winner, set(verdict(field).ties)) == (None, {"allreduce", "horovod"})
    assert " are level on 2 workers: the difference is below 3 % (0.999 to 1.002)." in verdict(field).headline


def test_a_winner_must_differ_from_every_other():
    """The runner-up is clearly slower, the third is slower on average but spread wide."""
    best = [record("allreduce", 2, start) for start in range(1, 6)]
    second = [record("horovod", 2, start) for start in range(1, 6)]
    third = [record("replicated", 2, start) for start in range(1, 6)]
    for k in range(5):
        best[k].rate["total"]["mean"] = 100.0 + 0.1 * k
        second[k].rate["total"]["mean"] = 95.0 + 0.1 * k
        third[k].rate["total"]["mean"] = 90.0 + 20.0 * (-1) ** k
    [decided] = fields_of(best + second)
    assert verdict(decided).headline.startswith("allreduce wins on 2 workers: 1.05x horovod (")
    [open_] = fields_of(best + second + third)
    assert verdict(open_).headline.startswith(
        "Not decided yet on 2 workers: allreduce runs at 1.09x replicated (95 % interval 0."
    )


def test_few_starts_give_figures_but_no_verdict():
    [field] = fields_of(race(worlds=(2,), starts=2))
    few = "2 fresh starts of allreduce and wfbp are too few, 5 are needed; "
    few += "allreduce runs at 1.10x ddp (without an interval)."
    assert verdict(field).headline == f"No verdict yet on 2 workers: {few}"


def test_what_changes_convergence_never_wins():
    fast = [record("neighbor_allreduce", 2, start, seed=7) for start in range(1, 6)]
    for entry in fast:
        entry.rate["total"]["mean"] *= 3
    [field] = fields_of(race(worlds=(2,), strategies=("ddp", "allreduce")) + fast)
    assert [standing.name for standing in leaders(field)] == ["allreduce", "ddp"]
    assert "neighbor_allreduce" not in verdict(field).headline
    assert any("change" in line and "neighbor_allreduce" in line for line in spoken(field))


def test_what_was_not_measured_says_so_and_does_not_beat_what_was():
    fast = [record("horovod", 2, start, kind="replayed") for start in range(1, 6)]
    for entry in fast:
        entry.rate["total"]["mean"] *= 3
    [field] = fields_of(race(worlds=(2,), strategies=("ddp", "allreduce")) + fast)
    assert field.find("horovod", 2).label == "horovod (replayed)"
    assert "horovod" not in verdict(field).headline
    assert any("replayed are not measured" in line for line in spoken(field))


def of_rate(strategy, mean, workers=2, **changes):
    return around(mean, [record(strategy, workers, start, **changes) for start in range(1, 7)])


def test_ddp_can_win():
    [field] = fields_of([*of_rate("ddp", 110), *of_rate("allreduce", 100), *of_rate("wfbp", 99)])
    assert verdict(field).headline.startswith("ddp wins on 2 workers: 1.10x allreduce (")
    assert not any("waiting for other ranks" in line for line in spoken(field))


def test_one_worker_is_the_plain_loop_and_not_a_strategy_that_is_slow_alone():
    alone = [*of_rate("limit", 100, 1), *of_rate("topk_sgd", 40, 1)]
    [field] = fields_of([*alone, *of_rate("topk_sgd", 90), *of_rate("ddp", 180)])
    assert field.baseline.name == "limit"
    assert any("ddp runs at 1.80x the rate of one worker (limit)" in line for line in spoken(field))


def test_pretended_nodes_are_contenders_of_their_own():
    two = of_rate("hierarchical_allreduce", 102, 4, run={"nodes": "2x2"})
    four = of_rate("hierarchical_allreduce", 52, 4, run={"nodes": "4x1"})
    [field] = fields_of(two + four)
    assert {s.name: len(s.records) for s in field.standings} == {
        "hierarchical_allreduce on 2x2": 6,
        "hierarchical_allreduce on 4x1": 6,
    }
    [alone] = fields_of(two)
    assert alone.standings[0].name == "hierarchical_allreduce"


def test_the_limit_never_leads_whatever_stands_beside_its_name():
    gloo = {"run": {"comm": "gloo"}}
    records = [*of_rate("limit", 120, **gloo), *of_rate("ddp", 90, **gloo), *of_rate("allreduce", 100, **gloo)]
    [field] = fields_of(records)
    assert verdict(field).headline.startswith("allreduce over gloo wins on 2 workers: 1.11x ddp over gloo (")
    assert any("of the limit" in line for line in spoken(field))
    nodes = [*of_rate("limit", 120, run={"nodes": "2x1"}), *of_rate("limit", 121), *of_rate("allreduce", 100)]
    [field] = fields_of(nodes)
    assert [s.name for s in leaders(field)] == ["allreduce"]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"device": "cuda"}, "cuda"),
        ({"environment": {"processor": "another"}}, "another"),
        ({"environment": {"packages": {"torch": "9.9"}}}, "torch 9.9"),
    ],
)
def test_records_of_different_machines_are_not_repeats_of_each_other(what, told):
    here = record()
    other = record(start=2, **{**what, "environment": {**here.environment, **what.get("environment", {})}})
    fields = fields_of([here, other])
    assert [len(field.standings) for field in fields] == [1, 1]
    assert any(told in field.title for field in fields)
    assert told not in fields_of([other])[0].title, "nothing differs there"


def test_rounds_are_paired_by_their_number():
    """Six rounds, each slower than the one before; each contender lost another one."""
    ours, ddp = of_rate("allreduce", 100), of_rate("ddp", 90)
    for k in range(6):
        for entry in (ours[k], ddp[k]):
            entry.rate["total"]["mean"] *= 1 - 0.1 * k
    del ddp[1], ours[3]
    [field] = fields_of(ours + ddp)
    best, rival = field.find("allreduce", 2), field.find("ddp", 2)
    assert len(best.paired(rival)) == best.starts_against(rival) == 4
    assert best.against(rival).centre == pytest.approx(100 / 90)
    few = "4 fresh starts of allreduce and ddp are too few, 5 are needed."
    assert verdict(field).headline == f"No verdict yet on 2 workers: {few}"


def test_a_mean_over_rounds_that_the_other_lost_is_no_lead():
    ours, ddp = of_rate("allreduce", 100), of_rate("ddp", 110)
    ours[5].rate["total"]["mean"] = 1000.0
    [field] = fields_of(ours + ddp[:5])
    assert verdict(field).headline.startswith("ddp wins on 2 workers: 1.10x allreduce (")


def test_a_script_that_deals_its_own_batches_has_no_batch_of_ours():
    assert "batch" not in spoken_setting(Run(), "step")


def test_a_record_says_whether_it_has_the_result_of_allreduce():
    new = record("", run={"rule": "a rule of tomorrow"}, same_result=True)
    [field] = fields_of([new])
    assert field.standings[0].group == SAME, "nothing is composed"
    [old] = fields_of([new.model_copy(update={"same_result": None})])
    assert old.standings[0].group == CHANGES, "an older record is composed, which fails here"


def test_what_a_race_decided_about_a_contender_counts_more_than_its_run():
    plain = record(race={}, same_result=True, seed=3)
    raced = cell("allreduce", start=2, same_result=False)
    [field] = fields_of([plain, raced])
    assert [standing.group for standing in field.standings] == [CHANGES]
