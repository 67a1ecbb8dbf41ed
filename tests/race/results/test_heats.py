"""Pages of races: the words of the race, and folders in which races and plain runs lie side by side."""

import pytest

from paceline.cli.race_view import spoken as on_terminal
from paceline.race.cells import BASELINE
from paceline.race.results.fields import fields_of
from paceline.race.results.heats import ALONE, bases, heat_of, label_of
from paceline.race.results.standing import CHANGES, SAME
from paceline.race.results.verdict import leaders, verdict
from paceline.race.suite import read_suite
from paceline.report import tables
from paceline.report.page import write_report
from paceline.report.page.sections import spoken
from paceline.run.reference import DDP
from tests.race.fake_race import drawn, raced, small
from tests.report.samples import around, cell, race, record

COMPILED = {"run": {"compile": True}}
NAMES = ("race-20261116-120000", "race-20261116-130000")


def cells(mean, label, strategy="allreduce", **changes):
    """Six rounds of one contender."""
    return around(mean, [cell(label, strategy, start=start, **changes) for start in range(1, 7)])


def plain(mean, strategy, starts):
    """Runs outside of any race."""
    return around(mean, [record(strategy, start=start, race={}) for start in range(1, starts + 1)])


def both(tmp_path, contenders, speed, **settings):
    """The verdict on the terminal, and the field of the page, of one race."""
    result = raced(tmp_path, small(contenders=contenders, **settings), drawn(speed))
    [field] = fields_of(result.records.values())
    return [list(on_terminal(verdict(result.field_of(heat), heat.workers))) for heat in result.plan.heats], field


# page and terminal say the same ---------------------------------------------------------------------


def test_a_contender_that_compiles_wins_on_the_page_as_on_the_terminal(tmp_path):
    contenders = ["allreduce", "compiled: allreduce,compile=true"]
    [terminal], field = both(tmp_path, contenders, {"compiled": 130.0})
    assert terminal[0].startswith("compiled wins on 2 workers: 1.4")
    assert "x ddp (95 % interval 1." in terminal[0]
    assert ", 1.31x allreduce (1." in terminal[0]
    assert verdict(field).headline == terminal[0]
    assert {s.name for s in field.at(2)} == {"limit", "ddp", "allreduce", "compiled"}
    assert "compile" not in field.title
    assert not any("of one worker" in line for line in spoken(field)), "alone, it was not compiled"


def test_a_race_of_a_strategy_against_itself_ends_level_on_both(tmp_path):
    [terminal], field = both(tmp_path, ["a: allreduce", "b: allreduce"], {"a": 100.0, "b": 100.0})
    first, second, *_ = (standing.name for standing in leaders(field))
    assert {first, second} == {"a", "b"}
    assert terminal[0].startswith(f"{first} and {second} are level on 2 workers: the difference is below 3 % (")
    assert verdict(field).headline == terminal[0]


def test_another_precision_changes_convergence_on_both(tmp_path):
    contenders = ["allreduce", "half: allreduce,precision=bf16"]
    [terminal], field = both(tmp_path, contenders, {"half": 200.0})
    assert terminal[0].startswith("allreduce wins")
    assert any(line.startswith("half runs at ") and "changes convergence" in line for line in terminal)
    assert verdict(field).headline.startswith("allreduce wins")
    assert [s.name for s in field.at(2, CHANGES)] == ["half"]
    assert any(line.startswith("half runs at") and "changes convergence" in line for line in spoken(field))


def test_every_number_of_workers_has_its_verdict_on_both(tmp_path):
    terminal, field = both(tmp_path, ["allreduce"], {}, workers=[2, 4])
    assert all(lines[0].startswith("allreduce wins") for lines in terminal)
    said = spoken(field)
    assert [line.partition(" wins on ")[2][:9] for line in said[:2]] == ["4 workers", "2 workers"]


def test_groups_of_a_shipped_suite_are_those_of_the_terminal(tmp_path):
    suite = read_suite("tensorpack").model_copy(update={"rounds": 2, "isolated": True})
    labels = [label.partition(":")[0] for label in suite.contenders]
    result = raced(tmp_path, suite, drawn(dict.fromkeys(labels, 100.0)))
    [field] = fields_of(result.records.values())
    shown = {(s.name, s.workers): s.group for s in field.standings}
    assert shown == {(e.label, e.heat.workers): SAME if e.same_result else CHANGES for e in result.plan.entries}
    assert {name for (name, _), group in shown.items() if group == CHANGES} == set(labels[-2:])


def test_one_worker_is_called_as_the_race_calls_it(tmp_path):
    assert ALONE == BASELINE
    _, field = both(tmp_path, ["allreduce"], {})
    assert field.baseline.name == BASELINE
    assert any(line.startswith("allreduce runs at 1.8") and "of one worker" in line for line in spoken(field))


def test_other_work_of_a_worker_has_no_speed_up_on_the_page(tmp_path):
    _, field = both(tmp_path, ["allreduce", "large: allreduce,batch_size=64"], {"large": 150.0})
    rows = {row[0]: row[-2:] for row in tables.scaling(field).rows}
    assert rows["large"] == ("-", "-")
    assert rows["allreduce"] != ("-", "-")


def test_the_page_of_a_race_has_its_labels_everywhere(tmp_path):
    records = [*cells(100, "ddp", "ddp"), *cells(120, "my <b>est", **COMPILED), *cells(110, "limit", "limit")]
    text = write_report(records, tmp_path / "r.html").read_text()
    assert "<h1>my &lt;b&gt;est wins on 2 workers: 1.20x ddp (" in text
    assert "<td>my &lt;b&gt;est</td>" in text, "the table of all runs"


# what a race wrote ----------------------------------------------------------------------------------


def test_records_of_plain_runs_and_older_races_say_nothing_of_a_heat():
    assert (heat_of(record(race={})), label_of(record(race={}))) == (None, None)
    assert (heat_of(record()), label_of(record())) == (None, None)


@pytest.mark.parametrize("reference", ["ddp", "limit"])
def test_a_reference_has_what_its_heat_shares(reference):
    found = [cell("compiled", **COMPILED), cell("tuned", reference, **COMPILED), cell(reference, reference)]
    assert [base.race["label"] for base in bases(found).values()] == [reference]


def test_without_references_the_plainest_contender_stands_for_its_heat():
    [field] = fields_of([*cells(110, "compiled", **COMPILED), *cells(100, "rule=grad", "", run={"rule": "grad"})])
    assert verdict(field).headline.startswith("compiled wins on 2 workers: 1.10x rule=grad (")
    assert "compile" not in field.title


# several races, and runs beside them ----------------------------------------------------------------


def test_races_of_one_question_are_one_field_in_which_equal_contenders_pool():
    records = [
        entry
        for name in NAMES
        for mean, label in ((90, "ddp"), (100, "allreduce"))
        for entry in cells(mean, label, label, name=name)
    ]
    [field] = fields_of(records)
    assert {s.name: len(s.records) for s in field.standings} == {"ddp": 12, "allreduce": 12}
    best, rival = leaders(field)
    assert best.starts_against(rival) == 12


def test_one_label_for_different_runs_is_separable():
    one = cells(100, "tuned", **COMPILED)
    other = cells(120, "tuned", name=NAMES[1], run={"source": "fake(cpu)"})
    ddp = [entry for name in NAMES for entry in cells(90, "ddp", "ddp", name=name)]
    [field] = fields_of([*one, *other, *ddp])
    assert {s.name for s in field.standings} == {
        "ddp",
        "tuned with compile True with source fake(device)",
        "tuned with compile False with source fake(cpu)",
    }


def test_equal_runs_under_other_labels_in_other_races_are_one_contender():
    [field] = fields_of([*cells(100, "mine"), *cells(100, "yours", name=NAMES[1])])
    assert [(s.name, len(s.records)) for s in field.standings] == [("allreduce", 12)]


def test_a_race_that_tells_equal_runs_apart_keeps_them_apart_in_a_folder():
    twins = [*cells(100, "allreduce"), *cells(100, "again")]
    [field] = fields_of([*twins, *cells(100, "other", name=NAMES[1]), record(race={}, seed=3)])
    assert {s.name: len(s.records) for s in field.standings} == {"allreduce": 7, "again": 6, "other": 6}


def test_plain_runs_and_older_races_join_the_contender_that_they_are():
    [field] = fields_of([*race(worlds=(2,)), *cells(90, "ddp", "ddp"), record("ddp", race={}, seed=3)])
    assert len(field.find("ddp", 2).records) == 5 + 6 + 1


def test_a_plain_run_beside_a_race_neither_wins_it_nor_spoils_its_verdict():
    done = [*cells(90, "ddp", "ddp"), *cells(100, "allreduce")]
    [field] = fields_of([*done, *plain(500, "horovod", 2)])
    assert verdict(field).headline.startswith("allreduce wins on 2 workers: 1.11x ddp (")
    assert any(line.startswith("horovod is not part of this verdict") for line in spoken(field))
    [field] = fields_of([*done, *plain(500, "horovod", 6)])
    assert verdict(field).headline.startswith("horovod wins on 2 workers: 5.56x ddp (95 % interval ")
    assert ", 5.00x allreduce (" in verdict(field).headline


def test_a_plain_run_of_another_setting_is_a_field_of_its_own():
    fields = fields_of([*cells(90, "ddp", "ddp"), *cells(100, "compiled", **COMPILED), record(race={}, **COMPILED)])
    assert [len(field.standings) for field in fields] == [2, 1]
    assert "compile True" in fields[1].title


def test_the_plain_ddp_is_what_others_are_compared_with():
    records = [*cells(90, "ddp", "ddp"), *cells(95, "a ddp", "ddp", **COMPILED), *cells(100, "compiled", **COMPILED)]
    [field] = fields_of(records)
    assert field.reference(DDP, field.find("compiled", 2)).name == "ddp"


def test_a_race_of_one_round_does_not_take_the_verdict_from_a_full_one():
    full = [*cells(100, "ddp", "ddp"), *cells(130, "allreduce")]
    short = [cell("wfbp", "wfbp", name=NAMES[1]), cell("ddp", "ddp", name=NAMES[1])]
    [field] = fields_of([*full, *short])
    assert verdict(field).headline.startswith("allreduce wins")
    assert "wfbp is not part of this verdict: it was not in that race, and 1 fresh start is too few." in spoken(field)
    [alone] = fields_of(short)
    assert verdict(alone).headline.startswith("No verdict yet"), "without a full race it is what there is"


def test_a_reference_that_ran_in_one_round_is_compared_in_that_round():
    found = [*cells(100, "allreduce"), cell("limit", "limit", start=1)]
    [field] = fields_of(found)
    ours, limit = field.find("allreduce", 2), field.find("limit", 2)
    ratio = ours.against(limit)
    assert ratio.low is None, "one round has no interval"
    assert ratio.centre == pytest.approx(ours.rates[0] / limit.rates[0])
    assert ours.starts_against(limit) == 1
