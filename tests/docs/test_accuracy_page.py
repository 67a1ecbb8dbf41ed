"""The table of final accuracies is made by a script, from records that belong to its rows."""

import importlib.util
import sys
from pathlib import Path

import pytest

from paceline.measure.record.record import read
from tests.report.samples import record

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("accuracy_script", ROOT / "benchmarks" / "accuracy.py")
script = importlib.util.module_from_spec(SPEC)
sys.modules["accuracy_script"] = script  # its dataclasses look for their module
SPEC.loader.exec_module(script)
ROWS = script.rows()


def kept(folder, row, seed, value, **changes):
    run = row.seeded(seed).with_(**changes)
    grade = {"value": value, "loss": 0.3, "samples": 10_000, "epoch": run.epochs}
    made = record().model_copy(update={"run": run, "workers": run.workers, "accuracy": [grade]})
    folder.mkdir(exist_ok=True)
    script.path_of(folder, row, seed).write_text(script.slimmed(made).to_json())


def test_the_page_is_that_of_the_records():
    text = script.PAGE.read_text()
    assert (text.count(script.BEGIN), text.count(script.END)) == (1, 1)
    expected = script.section(ROWS, script.scores_of(script.RECORDS, ROWS))
    assert script.replaced(text, expected) == text, "try: python benchmarks/accuracy.py --at-most 0"


def test_every_record_belongs_to_a_row():
    named = {script.path_of(script.RECORDS, row, seed) for row in ROWS for seed in range(row.seeds)}
    assert set(script.RECORDS.glob("*")) <= named


def test_names_of_records_and_settings_of_rows_differ():
    names = [script.path_of(Path("x"), row, 0) for row in ROWS]
    assert len(set(names)) == len({row.run.text for row in ROWS}) == len(ROWS)
    assert {row.beside for row in ROWS} <= {row.name for row in ROWS}


def test_a_row_without_all_seeds_is_called_not_finished(tmp_path):
    first, other = ROWS[0], ROWS[3]
    for seed in range(5):
        kept(tmp_path, first, seed, 0.91 + 0.001 * seed)
    for seed in range(4):
        kept(tmp_path, other, seed, 0.905 + 0.001 * seed)
    lines = script.table(ROWS, script.scores_of(tmp_path, ROWS))
    assert lines[2] == "| allreduce, 2 workers | 91.20 (91.00 to 91.40) | 5 of 5 | | | the row to compare with |"
    assert lines[3] == "| allreduce, 1 worker | - | 0 of 5 | allreduce, 2 workers | - | not finished |"
    assert lines[5].endswith("| 4 of 5 | allreduce, 2 workers | -0.50 (-0.50 to -0.50) | not finished |")
    kept(tmp_path, other, 4, 0.909)
    lines = script.table(ROWS, script.scores_of(tmp_path, ROWS))
    assert lines[5].endswith("| 5 of 5 | allreduce, 2 workers | -0.50 (-0.50 to -0.50) | within 1 point |")
    assert "10 of 55 trainings are finished" in script.section(ROWS, script.scores_of(tmp_path, ROWS)).replace(
        "\n", " "
    )


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([-0.2, 0.1, 0.0, 0.3, -0.1], "within 1 point"),
        ([-1.5, -1.2, -1.4, -1.3, -1.6], "lower"),
        ([1.5, 1.2, 1.4, 1.3, 1.6], "higher"),
        ([-3.0, 2.0, 0.0, 1.0, -2.0], "not decided"),
    ],
)
def test_a_verdict_is_that_of_the_whole_interval(differences, verdict):
    assert script._verdict(script.mean_interval(differences)) == verdict


def test_a_record_of_another_run_is_refused(tmp_path):
    kept(tmp_path, ROWS[0], 0, 0.9, epochs=9)
    with pytest.raises(
        SystemExit, match=r"is not a record of paceline run -np 2 .*--epochs \d+ --seed 0|try: remove it"
    ):
        script.scores_of(tmp_path, ROWS)


def test_a_slim_record_is_read_and_shown_as_before(tmp_path):
    from paceline.cli.show import shown

    whole = record()
    path = tmp_path / "a.json"
    path.write_text(script.slimmed(whole).to_json())
    assert list(shown(read(path))) == list(shown(whole.without_secrets()))
    assert "seconds" not in read(path).series
