"""What stands in the lines: every published figure, ours beside it, starts behind it, and no line that is too long."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from paceline.cli.reproduce import spoken, values
from paceline.race.plan import plan
from paceline.race.published import NAMES, elasticdl, load
from paceline.race.published._sheet import UNTOLD
from paceline.race.reproduce import reproduce
from paceline.race.suite import read_suite
from tests.race.published.kept import cells, kept

SETTINGS = {"image", "workload"}  # what was run, not what came out: the shape of an image, the batch of the workload
TOLD = {
    "communication": {"share": 0.123, "ratio": "10:2"},
    "task": {"batches": 50, "task": 205.4, "allreduce": 25.25, "pack": 0.5, "update": 5.475},
}


def figures(value, key=""):
    """Every number of a published file, and every ratio such as 10:3. Other text is none: names, dates, notes."""
    if key in SETTINGS or isinstance(value, bool):
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from figures(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from figures(inner, key)
    elif isinstance(value, int | float):
        yield float(value)
    elif re.fullmatch(r"\d+:\d+", value):
        yield value


def printed(lines):
    """Every number in these lines: 1,024 is one, and 95% is 0.95."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", "\n".join(lines))
    for word in re.findall(r"\d+:\d+|\d+(?:\.\d+)?%?", text):
        yield word if ":" in word else float(word[:-1]) / 100 if word.endswith("%") else float(word)


def test_figures_are_found_wherever_they_stand():
    published = {"a": [1, {"b": "10:3"}], "image": [3], "date": "2017-09", "workload": {"batch": 4}}
    assert list(figures(published)) == [1.0, "10:3"]
    assert list(printed(["gpu, 1 | 1,024 0.5", "10:3 95%"])) == [1.0, 1024.0, 0.5, "10:3", 0.95]


@pytest.mark.parametrize("name", NAMES)
def test_every_published_figure_is_printed_as_often_as_it_was_published(name, tmp_path):
    found = replace(reproduce(name, tmp_path), notes=(), judged=())  # notes repeat figures of the tables
    asked = Counter(figures(load(name)))
    assert asked
    assert asked - Counter(printed(spoken(found))) == Counter()


def fill(name, runs, starts, **changes):
    """Records of everything that --measure would run."""
    for run in list(reproduce(name, runs).missing()):
        for start in range(1, starts + 1):
            kept(run, runs, start, **changes)


@pytest.mark.parametrize("kind", ["measured", "replayed"])
@pytest.mark.parametrize("starts", [0, 1, 5])
@pytest.mark.parametrize("name", NAMES)
def test_no_line_is_longer_than_eighty_columns(name, starts, kind, tmp_path):
    fill(name, tmp_path, starts, kind=kind, **TOLD)
    assert max(map(len, spoken(reproduce(name, tmp_path)))) <= 80


def figure(cell, name):
    return next(figure for figure in cell.row.figures if figure.name == name)


def test_the_other_columns_stand_beside_those_of_our_records(tmp_path):
    run, _ = elasticdl.run_of("mobilenet_v2", 2)
    kept(run, tmp_path, **TOLD)
    [cell] = [cell for cell in cells("elasticdl", tmp_path) if cell.state == "measured"]
    ratio = figure(cell, "comp:comm")
    assert (ratio.published, cell.value(ratio)) == ("10:3", "10:0.5"), "the mean step of all records"
    told = [cell.value(figure(cell, name)) for name in ("comm/step", "task s", "allreduce s", "numpy s", "apply s")]
    assert told == [0.123, 205.4, 25.25, 0.5, 5.475]
    [line] = [line for line in spoken(reproduce("elasticdl", tmp_path)) if "10:0.5" in line]
    assert re.split(r"[ |]+", line) == ["2", "workers", "10:3", "10:0.5", "0.123", "205", "25.2", "0.500", "5.475"]


def test_a_figure_is_the_mean_of_all_fresh_starts(tmp_path):
    run, _ = elasticdl.run_of("mobilenet_v2", 2)
    for start, seconds in enumerate((1.0, 2.0, 6.0), 1):
        kept(run, tmp_path, start, task={"task": seconds})
    [cell] = [cell for cell in cells("elasticdl", tmp_path) if cell.state == "measured"]
    assert cell.value(figure(cell, "task s")) == 3.0


def test_a_figure_that_a_record_does_not_tell_is_empty_with_the_reason(tmp_path):
    run, _ = elasticdl.run_of("mobilenet_v2", 2)
    kept(run, tmp_path)
    [sheet] = [s for s in reproduce("elasticdl", tmp_path).sheets if any(c.state == "measured" for c in s.cells)]
    cell = sheet.find("2 workers")
    assert (cell.value(figure(cell, "comp:comm")), cell.missing(figure(cell, "comp:comm"))) == (None, UNTOLD)
    assert UNTOLD in sheet.reasons
    assert [cell.row.figures[k].name for k in sheet.columns] == ["comp:comm"], "what nobody has is no column"


def synthetic(run):
    """Whether a run of dlaas is of the table of synthetic data on the host network."""
    return run is not None and run.source == "fake(device)" and not run.lab


def two_workers(runs):
    """The cell of two workers, its line, and its JSON."""
    found = reproduce("dlaas", runs)
    known = [cell for cell in cells("dlaas", runs) if synthetic(cell.row.run) and cell.state != "empty"]
    [cell] = [cell for cell in known if cell.row.name == "2"]
    [line] = [line for line in spoken(found) if cell.record.id[-6:] in line]
    [entry] = [entry for s in values(found)["sheets"] for entry in s["cells"] if cell.record.id in entry["records"]]
    return cell, line, entry


def test_one_start_has_no_interval_whatever_is_inside_it(tmp_path):
    fill("dlaas", tmp_path, 1)
    cell, line, entry = two_workers(tmp_path)
    assert (cell.ratio.low, cell.ratio.high, cell.behind) == (None, None, 1)
    assert "[" not in line
    assert line.split()[-2:] == ["1", cell.record.id[-6:]]
    assert (entry["rate"]["low"], entry["rate"]["starts"], entry["ratio"]["starts"]) == (None, 1, 1)


def test_one_start_on_the_other_side_gives_no_interval_either(tmp_path):
    one, two = sorted(filter(synthetic, reproduce("dlaas", tmp_path).missing()), key=lambda run: run.workers)
    kept(one, tmp_path)
    for start in range(1, 6):
        kept(two, tmp_path, start)
    cell, _, entry = two_workers(tmp_path)
    assert (cell.ratio.low, cell.behind) == (None, 1)
    assert (entry["rate"]["starts"], entry["ratio"]["starts"]) == (5, 1)
    assert entry["rate"]["low"] is not None


def test_an_interval_says_how_many_starts_it_is_over(tmp_path):
    fill("dlaas", tmp_path, 5)
    cell, line, _ = two_workers(tmp_path)
    assert cell.ratio.low is not None
    assert re.search(rf"\] +5 {cell.record.id[-6:]} \+4$", line)


def test_a_cell_names_all_its_records_and_each_deleted_one_is_a_start_less(tmp_path):
    fill("dlaas", tmp_path, 3)
    for left in (3, 2, 1):
        cell, _, entry = two_workers(tmp_path)
        assert entry["records"] == [record.id for record in cell.records]
        assert (len(entry["records"]), cell.behind) == (left, left)
        (tmp_path / f"{cell.record.id}.json").unlink()
    assert all(c.state == "empty" for c in cells("dlaas", tmp_path) if c.row.name == "2" and synthetic(c.row.run))


def cluster(runs):
    sheets = [s for s in reproduce("elasticdl", runs).sheets if s.sheet.title.startswith("cpu cluster")]
    found = [(s.sheet.title.rpartition(" ")[2], cell) for s in sheets for cell in s.cells if cell.row.run]
    return {(model, cell.row.run.workers): cell for model, cell in found}


def test_records_of_the_suite_answer_the_table_of_the_cpu_cluster(tmp_path):
    raced = plan(read_suite("elasticdl"))
    for cell in raced.cells:
        kept(cell.run, tmp_path / "elasticdl-20261116-113549", cell.round, **TOLD)
    found = cluster(tmp_path)
    assert sorted(found) == [("mobilenet_v2", 1), ("mobilenet_v2", 2), ("resnet50", 1), ("resnet50", 2)]
    for (_, workers), cell in found.items():
        assert (cell.state, cell.behind, cell.record.run.strategy) == ("measured", 5, "allreduce")
        assert (cell.record.run.workers, cell.record.run.cpus) == (workers, None)
        assert cell.value(figure(cell, "comm/step")) == pytest.approx(0.123)
    assert found["resnet50", 2].ratio.low is not None
    shown = " ".join(spoken(reproduce("elasticdl", tmp_path)))
    assert "here: this machine's cores instead of 4 CPUs for each worker" in shown


def test_measuring_leaves_the_suite_to_the_race(tmp_path):
    found = cluster(tmp_path)
    assert {cell.reason for cell in found.values()} == {
        "no record of paceline race --suite elasticdl; --measure leaves it to that"
    }
    asked = [run for round in reproduce("elasticdl", tmp_path).rounds(5) for run in round]
    assert {run.cpus for run in asked} == {run.cpus for run in reproduce("elasticdl", tmp_path).missing()} == {0.3}
