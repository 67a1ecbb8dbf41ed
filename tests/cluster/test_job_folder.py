"""The folder of a job is removed with the job, however the job ends."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.cluster.job_folder import KEPT, job_folder
from paceline.cluster.owner import owned_prefix
from paceline.errors import WorkerFailed


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Temporary folders of this test are here, and so are those of a process that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def _fail_in(folder):
    (folder / "store").mkdir()
    raise WorkerFailed("rank 0 failed")


def left_by_a_killed_launcher():
    code = """
import os, signal
from paceline.cluster.job_folder import job_folder
with job_folder() as folder:
    (folder / "rank-0.log").write_text("x")
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    return Path(done.stdout.strip())


def test_a_folder_goes_with_its_job(place):
    with job_folder() as folder:
        assert folder.parent == place
        assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(KeyboardInterrupt), job_folder():
        raise KeyboardInterrupt
    assert list(place.iterdir()) == []


def test_the_next_job_takes_away_what_a_killed_one_left(place):
    left = left_by_a_killed_launcher()
    assert left.is_dir()
    with job_folder() as folder:
        assert list(place.iterdir()) == [folder]


def test_logs_of_a_failure_stay_and_so_does_what_others_own(place):
    with pytest.raises(WorkerFailed), job_folder() as failed:
        _fail_in(failed)
    left = left_by_a_killed_launcher()
    (left / KEPT).touch()
    others = place / f"{owned_prefix()}other"
    others.mkdir()
    foreign = place / "paceline-tests-x"
    foreign.mkdir()
    with job_folder() as folder:
        assert set(place.iterdir()) == {failed, left, others, foreign, folder}
    assert [path.name for path in failed.iterdir()] == [KEPT]


def test_logs_of_a_failed_job_go_after_a_week(place):
    logs = []
    for days in (6, 8):
        logs.append(left_by_a_killed_launcher())
        (logs[-1] / KEPT).touch()
        when = time.time() - days * 86400
        os.utime(logs[-1] / KEPT, (when, when))
    with job_folder():
        assert [folder.exists() for folder in logs] == [True, False]
