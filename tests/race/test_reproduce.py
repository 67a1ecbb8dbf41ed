"""Published tables: every cell has a state, every figure of ours a record; without the record there is no figure."""

import json
import os
import re
from itertools import groupby, pairwise

import pytest

from paceline.cli.reproduce import spoken, values
from paceline.cluster.environment import capture
from paceline.errors import TurnFailed, WrongCommand
from paceline.measure.record.experiment import Experiment
from paceline.measure.record.record import Record
from paceline.measure.stats.intervals import Interval
from paceline.race import reproduce as job
from paceline.race.published import NAMES, dlaas, elasticdl, load
from paceline.race.published._sheet import STARTS, Row, SheetCell
from paceline.race.reproduce import reproduce
from paceline.race.surroundings import DATASET, STORE, ZMQ, beside, disk
from paceline.run.run import Run
from paceline.types import View, Workload
from paceline.workload import sources
from paceline.workload.stream.pipe import TOKEN
from tests.race.published.kept import cells, kept
from tests.report.samples import record

QUEUE = f"queue({DATASET})"


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_filled_or_says_why_not(name, tmp_path):
    found = cells(name, tmp_path)
    assert found
    assert all(cell.state == "empty" and cell.reason for cell in found)


@pytest.mark.parametrize("name", NAMES)
def test_contradictions_of_the_published_tables_are_printed(name, tmp_path):
    shown = re.sub(r"\s+", " ", " ".join(spoken(reproduce(name, tmp_path))))
    for note in load(name)["notes"]:
        assert re.sub(r"\s+", " ", note) in shown


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_names_its_record_and_is_empty_without_it(name, tmp_path):
    runs = tmp_path / "runs"
    run = next(reproduce(name, runs).missing())
    path = kept(run, runs)
    [filled] = [cell for cell in cells(name, runs) if cell.state != "empty"]
    assert (filled.state, filled.record.id) == ("measured", path.stem)
    assert path.stem[-6:] in " ".join(spoken(reproduce(name, runs)))
    assert any(path.stem in entry["records"] for s in values(reproduce(name, runs))["sheets"] for entry in s["cells"])
    path.unlink()
    assert all(cell.state == "empty" for cell in cells(name, runs))


def test_what_was_not_measured_is_labelled(tmp_path):
    run = next(reproduce("dlaas", tmp_path).missing())
    kept(run, tmp_path, kind="replayed")
    assert {cell.state for cell in cells("dlaas", tmp_path)} == {"empty", "replayed"}
    assert "replayed" in " ".join(spoken(reproduce("dlaas", tmp_path)))


def test_a_damaged_or_failed_record_fills_no_cell(tmp_path):
    run = next(reproduce("dlaas", tmp_path).missing())
    path = kept(run, tmp_path, verdict="failed")
    assert all(cell.state == "empty" for cell in cells("dlaas", tmp_path))
    path.write_text(path.read_text()[:100])
    assert all(cell.state == "empty" for cell in cells("dlaas", tmp_path))


def test_efficiency_is_speed_up_divided_by_workers(tmp_path):
    for run in reproduce("dlaas", tmp_path).missing():
        kept(run, tmp_path)
    twos = [cell for cell in cells("dlaas", tmp_path) if cell.state == "measured" and cell.row.run.workers == 2]
    assert {cell.row.name for cell in twos} == {"2", "disk, 2", "fake, 2"}
    assert all(cell.ratio.centre == pytest.approx(196 * 0.96 / 205, rel=0.05) for cell in twos)


def test_rows_of_an_object_store_have_their_stall_beside_disk_and_fake_data(tmp_path):
    runs = {run.source: run for run in reproduce("dlaas", tmp_path).missing() if run.workers == 2}
    assert {STORE, disk(), "fake(cpu)"} <= set(runs)
    kept(runs[STORE], tmp_path, breakdown={"data": 0.25, "step": 1.0})
    [stored] = [cell for cell in cells("dlaas", tmp_path) if cell.state == "measured"]
    [stall] = [figure for figure in stored.row.figures if figure.name == "stall"]
    assert stored.value(stall) == "25.0%"


def test_the_claim_about_zmq_is_judged_by_five_starts_of_all_ways_from_outside(tmp_path):
    def judged():
        return reproduce("tensorpack", tmp_path).judged

    assert [text.partition('": ')[2] for text in judged()] == ["not judged: cells are empty"]
    outside = [run for run in reproduce("tensorpack", tmp_path).missing() if run.source in (QUEUE, DATASET, ZMQ)]
    for run in outside:
        kept(run, tmp_path)
    assert len(judged()) == 4  # two tables, one and two workers
    assert all("not decided: too few fresh starts" in text for text in judged())
    for run in outside:
        for start in range(2, 6):
            kept(run, tmp_path, start)
    assert all("false here (zmq has 1.00" in text for text in judged()), judged()


@pytest.mark.multi
def test_surroundings_serve_shards_and_send_batches_while_a_run_lasts(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for source, count in ((STORE, 16), (disk(), 16)):
        with beside(Run(source=source)):
            made = sources.MENU.make(source)
            images, labels = made.samples_of(Workload(None, None, None))(made.order(count, 0).ids(0, 0))
            assert images.shape == (count, 3, 64, 64)
            assert len(set(labels.tolist())) > 1
            if made.counts():
                made._place.blocks.close()
    assert "AWS_SECRET_ACCESS_KEY" not in os.environ
    with beside(Run(source=ZMQ, batch_size=4)):
        stream = sources.MENU.make(ZMQ).open(View(0, 1), {})
        assert [list(part.shape) for part in stream.take()] == [[4, 3, 64, 64], [4]]
        stream.close()
    assert TOKEN not in os.environ


def test_members_that_are_not_there_are_found_by_asking(tmp_path, monkeypatch):
    def reasons():
        return {cell.reason for cell in cells("tensorpack", tmp_path)}

    monkeypatch.setattr("paceline.race.published.tensorpack.STRATEGIES", {"replicated": None})
    assert "this version has no strategy parameter_server" in reasons()
    monkeypatch.setattr("paceline.race.published.tensorpack.STRATEGIES", {"replicated": 0, "parameter_server": 0})
    assert "this version has no strategy parameter_server" not in reasons()


@pytest.fixture
def done(monkeypatch):
    """Return the requested runs in order; nothing is run."""
    runs = []

    def measure(run, on_line, **_):
        runs.append(run)
        made = record(run.strategy, run.workers, seed=len(runs))
        here = {"time": f"2026-11-16T00:00:{len(runs):02}", "environment": capture()}
        return made.model_copy(update={"run": run, **here}), []

    monkeypatch.setattr("paceline.race.keep.measure", measure)
    monkeypatch.setattr(
        "paceline.race.keep.measure_together", lambda task, on_line, **_: [measure(run, None) for run in task.runs]
    )
    return runs


@pytest.fixture(autouse=True)
def without_root(monkeypatch):
    """No lab can be made, whoever runs the tests."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)


def test_cells_of_a_lab_need_root(tmp_path, done, monkeypatch):
    [why] = {cell.reason for cell in cells("bluefog", tmp_path) if cell.row.run and cell.row.run.lab}
    assert why == "a lab: network namespaces need root"
    monkeypatch.setattr("paceline.race.published._sheet.check_tools", lambda: None)
    left = []
    job.measure_missing(
        "bluefog",
        tmp_path,
        quick=True,
        on_start=lambda *told: left.append(told[3]),
        clock=iter(range(0, 999, 5)).__next__,  # looked at before and after each start
    )
    labs = [run for run in done if run.lab]
    assert len(labs) == 15, "five strategies, three lengths of a step"
    assert left == [None, 5 * 3, 5 * 2, 5], "one start in a lab, three of single runs"


@pytest.fixture
def labs(monkeypatch):
    monkeypatch.setattr("paceline.race.published._sheet.check_tools", lambda: None)


def test_strategies_of_a_lab_share_their_starts_and_are_compared_inside_each(tmp_path, done, labs):
    groups = []
    job.measure_missing(
        "bluefog",
        tmp_path,
        quick=False,
        table="in a box",
        on_start=lambda runs, *_: groups.append([run.compute for run in runs]),
    )
    assert [len(group) for group in groups] == [15] * STARTS, "five strategies with three step times"
    orders = [[k for k, _ in groupby(group)] for group in groups]
    assert all(len(order) == 3 for order in orders), "what is compared runs one after the other"
    assert len(set(map(tuple, orders))) > 1, "the order is drawn anew"
    boxes = [cell for cell in cells("bluefog", tmp_path) if cell.row.run and cell.row.run.lab]
    assert {cell.behind for cell in boxes} == {STARTS}
    assert all(cell.record.race["shared"] and len(cell.record.race["mates"]) == 14 for cell in boxes)
    assert {cell.state for cell in cells("bluefog", tmp_path) if not cell.row.run or not cell.row.run.lab} == {"empty"}


def test_links_and_an_overlay_do_not_share_a_start(tmp_path, done, labs):
    groups = []
    job.measure_missing(
        "dlaas", tmp_path, quick=True, table="vxlan", on_start=lambda runs, *_: groups.append([r.lab for r in runs])
    )
    assert sorted(map(len, groups)) == [2, 2]
    assert all(len(set(group)) == 1 for group in groups)


def test_a_failed_shared_start_is_told_for_every_run_and_leaves_failed_records(tmp_path, done, labs, monkeypatch):
    def fail(task, on_line, **_):
        raise TurnFailed("rank 3 was killed", "ddp", "", "")

    monkeypatch.setattr("paceline.race.keep.measure_together", fail)
    problems, left = job.measure_missing("bluefog", tmp_path, quick=True, table="1.8 s")
    assert len(problems) == 5
    assert left == 0
    assert all("rank 3 was killed" in problem for problem in problems)
    found = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert [one["verdict"] for one in found] == ["failed"] * 5
    assert all(cell.state == "empty" for cell in cells("bluefog", tmp_path))


def test_minutes_end_before_a_start_that_would_be_late_and_the_next_call_continues(tmp_path, done, labs):
    def measured(minutes):
        return job.measure_missing(
            "bluefog", tmp_path, quick=True, minutes=minutes, clock=iter(range(0, 9999, 60)).__next__
        )

    problems, left = measured(5)
    assert (problems, left) == ([], 2), "a start takes a minute, and looking at the clock another one"
    assert measured(1000) == ([], 0)
    assert measured(1000) == ([], 0)
    assert len(done) == 3 * 5 + 3


def test_a_text_that_no_title_has_is_refused_with_the_titles(tmp_path):
    with pytest.raises(WrongCommand, match=r"--table 'nothing'.*no title of bluefog has it: ResNet-50, batch 64"):
        reproduce("bluefog", tmp_path, "nothing")
    [sheet] = reproduce("bluefog", tmp_path, "STEPS OF 2.7").sheets
    assert "2.7 s" in sheet.sheet.title


def test_a_replayed_cell_has_an_interval_over_its_starts(tmp_path, done, monkeypatch):
    monkeypatch.setattr("paceline.race.published._sheet.check_tools", lambda: None)
    job.measure_missing("dlaas", tmp_path, quick=False, starts=3)
    [direct] = [cell for cell in cells("dlaas", tmp_path) if cell.row.name == "direct"]
    assert direct.repeats == 3
    assert direct.row.ratio == 0.80
    assert direct.ratio.low is not None


def test_measuring_fills_what_is_missing_and_nothing_twice(tmp_path, done):
    assert job.measure_missing("bluefog", tmp_path, quick=True) == ([], 0)
    assert len(done) == 3
    assert all((run.steps, run.repeats) == (3, 2) for run in done)
    job.measure_missing("bluefog", tmp_path, quick=True)
    assert len(done) == 3
    assert {cell.state for cell in cells("bluefog", tmp_path)} == {"empty", "measured"}


def test_measuring_starts_every_cell_anew_interleaved(tmp_path, done):
    job.measure_missing("bluefog", tmp_path, quick=False)
    assert len(done) == 3 * STARTS
    names = [run.strategy for run in done]
    assert all(len(set(names[k : k + 3])) == 3 for k in range(0, len(names), 3))
    assert len({tuple(names[k : k + 3]) for k in range(0, len(names), 3)}) > 1, "the order is drawn anew"
    assert {cell.repeats for cell in cells("bluefog", tmp_path) if cell.ratio} == {STARTS}


def test_measuring_goes_on_where_it_was_stopped(tmp_path, done):
    job.measure_missing("bluefog", tmp_path, quick=False)
    for cell in cells("bluefog", tmp_path):
        if cell.row.name == "neighbor, 2" and cell.record:
            (tmp_path / f"{cell.record.id}.json").unlink()
    again = len(done)
    job.measure_missing("bluefog", tmp_path, quick=False)
    assert sorted(run.strategy for run in done[again:]) == ["horovod", "neighbor_allreduce"], (
        "and what it is held against"
    )
    job.measure_missing("bluefog", tmp_path, quick=False)
    assert len(done) == again + 2
    assert {cell.repeats for cell in cells("bluefog", tmp_path) if cell.ratio} == {STARTS, STARTS + 1}


def test_more_starts_can_be_asked_for(tmp_path, done):
    job.measure_missing("bluefog", tmp_path, quick=False)
    job.measure_missing("bluefog", tmp_path, quick=False, starts=STARTS + 2)
    assert len(done) == 3 * (STARTS + 2)
    assert {cell.repeats for cell in cells("bluefog", tmp_path) if cell.ratio} == {STARTS + 2}


def test_a_short_start_does_not_count_as_one_of_the_five(tmp_path, done):
    job.measure_missing("bluefog", tmp_path, quick=True)
    job.measure_missing("bluefog", tmp_path, quick=False)
    assert len(done) == 3 + 3 * STARTS
    assert {cell.starts for cell in cells("bluefog", tmp_path) if cell.standing} == {STARTS}


@pytest.mark.parametrize("other", [{"processor": "another one"}, {"cores": 512}, {"packages": {"torch": "1.0"}}])
def test_records_of_another_machine_or_version_fill_no_cell(other, tmp_path):
    run = next(reproduce("dlaas", tmp_path).missing())
    kept(run, tmp_path, environment={**capture(), **other})
    assert all(cell.state == "empty" for cell in cells("dlaas", tmp_path))


def test_one_start_decides_no_conclusion_however_many_repeats_are_inside(tmp_path):
    for run in reproduce("elasticdl", tmp_path).missing():
        kept(run.with_(repeats=9), tmp_path)
    judged = reproduce("elasticdl", tmp_path).judged
    assert all("not decided: too few fresh starts, 5 are needed" in line for line in judged)


def test_the_elastic_table_asks_for_the_published_share_of_a_core(tmp_path):
    asked = [cell.row.wanted for cell in cells("elasticdl", tmp_path) if cell.row.wanted is not None]
    assert {run.cpus for run in asked} == {0.3}
    assert {run.workers for run in asked} == {1, 2, 3}


@pytest.mark.parametrize("model", elasticdl.MODELS)
def test_every_elastic_model_is_asked_for_on_one_two_and_three_workers(model, tmp_path):
    [sheet] = [s for s in reproduce("elasticdl", tmp_path).sheets if s.sheet.title == elasticdl._title(model)]
    assert [cell.row.run.workers for cell in sheet.cells] == [1, 2, 3]
    assert all(cell.row.base == "1 worker" for cell in sheet.cells)
    if model == "resnet50":
        assert [cell.row.rate for cell in sheet.cells] == [3.1, 5.65, None]


def ratios(*centres, width=0.01, repeats=5):
    return {
        model: SheetCell(Row("2 workers"), ratio=Interval(centre, centre - width, centre + width), repeats=repeats)
        for model, centre in zip(elasticdl.MODELS, centres, strict=True)
    }


def test_a_conclusion_is_true_false_or_undecided_by_intervals():
    sizes = {model: Interval(size, None, None) for model, size in zip(elasticdl.MODELS, (23.5, 2.2, 11.2), strict=True)}

    def judged(**kwargs):
        return elasticdl.ordered(ratios(1.5, 1.9, 1.7, **kwargs), sizes, "M", rising=False)

    assert judged().startswith("true here")
    assert judged(width=0.3).startswith("not decided: the difference may be chance")
    assert elasticdl.ordered(ratios(1.9, 1.9, 1.91), sizes, "M", rising=False).startswith("false here"), "level"
    fallen = elasticdl.ordered(ratios(1.9, 1.5, 1.7, width=0.15), sizes, "M", rising=False)
    assert fallen.startswith("false here"), "not surely fallen, but surely not risen by 10 %"
    assert judged(repeats=4).startswith("not decided: too few fresh starts")
    assert elasticdl.ordered(ratios(1.9, 1.5, 1.7), sizes, "M", rising=False).startswith("false here")
    assert elasticdl.ordered(ratios(1.9, 1.7, 1.5), {**sizes, "resnet50": None}, "M", rising=False).startswith(
        "not jud"
    )
    sizes["mobilenet_v2"] = Interval(11.1, 10.5, 11.7)
    sizes["image_compression"] = Interval(11.2, 10.6, 11.8)
    assert judged().startswith("not decided: M cannot be told apart")


def test_all_three_published_conclusions_are_judged(tmp_path):
    judged = reproduce("elasticdl", tmp_path).judged
    assert len(judged) == 3
    assert all("not judged: cells are empty" in line for line in judged)


@pytest.mark.parametrize("place", dlaas.FIELDS.values())
def test_a_published_field_is_a_field_of_ours(place):
    top, _, inner = place.partition(".")
    fields = {"experiment": Experiment.model_fields, "run": Run.model_fields}
    assert top in Record.model_fields
    assert not inner or inner in fields[top]


def test_what_is_compared_is_measured_one_after_the_other(tmp_path):
    for order in reproduce("elasticdl", tmp_path).rounds(2):
        models = [run.model for run in order]
        assert len(models) == 9
        assert sum(a != b for a, b in pairwise(models)) == 2, "three models, each in one piece"
