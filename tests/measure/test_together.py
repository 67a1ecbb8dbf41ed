"""A start that contenders share: whose turn it was when a worker failed, and where its log is."""

import json

from paceline.errors import WorkerFailed
from paceline.measure.together import _blamed


def test_a_failed_turn_names_the_contender_and_the_log(tmp_path):
    report = {"contender": "wfbp", "kind": "KeyboardInterrupt", "error": "rank 1 was interrupted"}
    (tmp_path / "rank-1.failed.json").write_text(json.dumps(report))
    failed = _blamed(tmp_path, 2, WorkerFailed("rank 1 failed", remedy="read here/rank-1.log"))
    assert (failed.contender, failed.what, failed.log) == ("wfbp", "rank 1 was interrupted", "read here/rank-1.log")
