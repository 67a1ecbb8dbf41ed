"""The report of a rank is the same on both sides of its file."""

import json

from paceline.measure.record.rank_report import RankReport, read_report
from tests.measure.test_measure import level, rank_of


def test_a_report_is_read_as_it_was_written(tmp_path):
    events = [(1.0, "data", 0, -1, 0.0), (1.5, "ready", 0, 3, 2.5)]
    report = rank_of(1, level(3), level(20), events=events, meetings=[(0.5, 1.0), (2.0, 2.5)], staleness={"bound": 2})
    path = tmp_path / "rank-1.json"
    path.write_text(report.to_json())
    assert read_report(path) == report


def test_every_field_of_a_report_is_in_its_file():
    assert set(json.loads(rank_of(0, [], level(20)).to_json())) == set(RankReport.__dataclass_fields__)
