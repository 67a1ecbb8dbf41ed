"""The record of an elastic job from its journal, and its chart in a report."""

import pytest

from paceline.cli.show import details
from paceline.elastic.journal import Journal, Row
from paceline.elastic.protocol import Group
from paceline.measure.elastic_record import elastic_record
from paceline.measure.record.record import read
from paceline.race.keep import save
from paceline.report.elastic import incident_table, rate_over_time, task_table
from paceline.report.page.write import write_report
from paceline.run.run import Run

DIED = {
    "at": 1003.0, "what": "died", "member": "1-77-5", "rank": 1, "generation": 1, "how": "its connection ended",
    "seconds": 0.2, "detect": 0.01, "reconfigure": 0.09, "commit": 0.1, "shards": 3,
}  # fmt: skip


def journal_of(path, rows=40, incidents=(DIED,)):
    journal = Journal(path)
    journal.begin(Group(1, ("0-76-4", "1-77-5"), 0, lengths=(4, 4)))
    journal.begin(Group(2, ("0-76-4", "1-77-5"), 10, lengths=(6, 2)))
    journal.begin(Group(3, ("0-76-4",), 11, lengths=(8,)))
    for incident in incidents:
        journal.note(incident)
    for k in range(rows):
        parts = {"steps": 5.0 * (k + 1), "compute": 0.1 * (k + 1), "wire": 0.025 * (k + 1), "pack": 0.005 * (k + 1)}
        journal.progress(Row(1000.0 + 0.25 * k, 1 + (k > 12), 5 * k, 2 - (k > 12), parts))
    journal.close()
    return path


@pytest.fixture
def record(tmp_path):
    run = Run(workers=2, model="python train.py", membership="elastic", batches_per_task=16)
    return elastic_record(run, journal_of(tmp_path / "journal.db"), text="paceline run -np 2 -- python train.py")


def test_the_rate_counts_committed_steps_and_parts_add_up_to_the_step(record):
    assert record.rate["total"]["mean"] == pytest.approx(20.0)
    assert record.unit == "step"
    assert record.step["median"] == pytest.approx(0.05)
    parts = dict(record.breakdown)
    assert parts.pop("step") == pytest.approx(sum(parts.values()))
    assert parts["compute"] == pytest.approx(0.02)


def test_the_published_columns_of_a_task_are_in_record_report_and_terminal(record, tmp_path):
    assert record.task["batches"] == 16
    assert record.task["task"] == pytest.approx(16 * record.breakdown["step"]) == pytest.approx(16 * 0.026)
    assert record.task["allreduce"] == pytest.approx(16 * 0.005)
    assert record.task["pack"] == pytest.approx(16 * 0.001)
    assert (record.elastic["shards"], record.elastic["deals"]) == ([8], 1)
    assert task_table([record]).rows[0][1:] == ("16", "0.416", "0.080", "0.016", "0.000", "8", "1")
    text = " ".join(" ".join(details(record)).split())
    assert "task whole 0.416, all-reduce 0.080, pack 0.016, apply 0.000 s per 16 batches" in text
    write_report([record], tmp_path / "page.html")
    assert "allreduce s" in (tmp_path / "page.html").read_text()


def test_every_incident_is_an_entry_with_its_phases(record, tmp_path):
    (incident,) = record.incidents
    assert (incident["what"], incident["at"], incident["rank"], incident["shards"]) == ("died", 3.0, 1, 3)
    assert incident["detect"] + incident["reconfigure"] + incident["commit"] == pytest.approx(incident["seconds"])
    assert record.elastic["generations"] == 3
    save(record, [], tmp_path / "record.json")
    assert read(tmp_path / "record.json").incidents == record.incidents
    text = " ".join(" ".join(details(record)).split())
    assert "died: 1-77-5 (generation 1, rank 1); its connection ended; 0.20 s to the next commit" in text


def test_the_chart_marks_every_incident(record):
    chart = rate_over_time(record)
    svg = chart.chart.draw(760)
    assert svg.count("3.0 s: died: 1-77-5") == 1
    assert incident_table(record).rows[0][:3] == ("died", "3.0", "1-77-5")
    assert chart.says == "1 incidents in 3 generations."


def test_a_report_shows_the_job_beside_other_runs(record, tmp_path):
    write_report([record], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Elastic jobs" in page
    assert "3.0 s: died: 1-77-5" in page


def test_a_job_that_was_too_short_has_no_record(tmp_path):
    assert elastic_record(Run(workers=2), journal_of(tmp_path / "journal.db", rows=2), text="") is None
