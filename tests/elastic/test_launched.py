"""Elastic jobs as a user starts them: `paceline run --membership elastic -- python SCRIPT`."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from paceline.cli import main
from paceline.elastic.journal import Journal

pytestmark = pytest.mark.multi

SCRIPT = """
import os, signal, sys
if os.environ["RANK"] == "1" and sys.argv[1] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "leaves":
    sys.exit(0)
import torch
import paceline
worker = paceline.join()
model = torch.nn.Linear(2, 1)
pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
waits = sys.argv[1] == "waits"
for x in worker.batches([torch.ones(2)] * 16, batch_size=4, epochs=5000 if waits else 1):
    model(x).sum().backward()
    if waits:
        import time
        time.sleep(0.05)
    if pace.step() and worker.rank == 0:
        print("committed", pace.steps, "with", worker.size)
"""


ENVIRON = {**os.environ, "OMP_NUM_THREADS": "1"}
PACELINE = [sys.executable, "-m", "paceline"]


def command(tmp_path, *flags, workers=2, does):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    words = [*PACELINE, "run", "-np", str(workers), "--membership", "elastic", *flags]
    return [*words, "--", sys.executable, str(path), does]


def launch(tmp_path, *flags, does):
    words = command(tmp_path, *flags, does=does)
    done = subprocess.run(words, env=ENVIRON, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def wait_for(what, seconds=240):
    limit = time.monotonic() + seconds
    while not (seen := what()):
        assert time.monotonic() < limit, "it has not happened"
        time.sleep(0.05)
    return seen


def test_a_job_begins_without_a_worker_that_died_and_is_not_started_again(tmp_path):
    code, text = launch(tmp_path, "--restart", "never", does="dies")
    assert code == 0, text
    assert "1 of 2 workers ended before the first group; it begins without them" in text
    assert "committed 2 with 1" in text


@pytest.mark.parametrize("comm", ["shm", "tcp"])
def test_a_model_of_the_list_trains_in_an_elastic_job_and_leaves_a_record(tmp_path, comm):
    record = tmp_path / "record.json"
    words = [*PACELINE, "run", "-np", "2", "--membership", "elastic", "--model", "mlp", "--batch-size", "8"]
    words += ["--steps", "30", "--repeats", "10", "--runs", str(tmp_path / "runs"), "--json", str(record)]
    words += ["--comm", comm]
    done = subprocess.run(words, env=ENVIRON, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = json.loads(record.read_text())
    assert kept["elastic"]["generations"] == 1
    assert kept["incidents"] == []
    assert kept["comm"] == comm
    parts = kept["breakdown"]
    assert abs(sum(parts.values()) - 2 * parts["step"]) < 0.02 * parts["step"]
    wall = kept["step"]["median"]
    assert 0.5 * wall < parts["step"] < 2 * wall  # members spend the time of a step on its parts


@pytest.mark.parametrize(
    "flag", [["--precision", "bf16"], ["--memory-format", "channels_last"], ["--trace", "trace.json"]]
)
def test_flags_that_an_elastic_run_would_ignore_are_refused(tmp_path, flag, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["run", "--membership", "elastic", "--model", "mlp", *flag])
    assert f"{flag[0]} with membership elastic" in capsys.readouterr().err


def test_a_job_whose_scripts_never_train_ends(tmp_path):
    code, text = launch(tmp_path, does="leaves")
    assert code == 0, text


@pytest.mark.slow
def test_a_worker_joins_a_running_job_leaves_it_and_watch_shows_both(tmp_path):
    out, state = tmp_path / "out", tmp_path / "state.json"
    with out.open("w") as stream:
        words = command(tmp_path, workers=1, does="waits")
        job = subprocess.Popen(words, env=ENVIRON, cwd=tmp_path, stdout=stream, stderr=subprocess.STDOUT)
    joiner = None
    try:
        line = r"paceline join (\S+) --token-file (\S+) -- python"
        address, token = wait_for(lambda: re.search(line, out.read_text())).groups()

        def members():
            words = [*PACELINE, "watch", address, "--token-file", token, "--once", "--json", str(state)]
            subprocess.run(words, env=ENVIRON, capture_output=True, check=True, timeout=120)
            return len(json.loads(state.read_text())["members"])

        words = [*PACELINE, "join", address, "--token-file", token, "--", sys.executable, str(tmp_path / "train.py")]
        joiner = subprocess.Popen([*words, "waits"], env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        wait_for(lambda: "with 2" in out.read_text())
        assert members() == 2
        joiner.terminate()
        text = joiner.communicate(timeout=240)[0].decode()
        assert joiner.returncode == 0, text
        assert "it leaves the job after this step" in text
        wait_for(lambda: members() == 1)
    finally:
        job.terminate()
        job.wait(timeout=60)
        if joiner is not None and joiner.poll() is None:
            joiner.kill()
            joiner.wait()


KEEPING = """
import sys, time
from pathlib import Path
import torch
import paceline
worker = paceline.join()
kept, life = Path(sys.argv[1]), Path(sys.argv[2])
model = torch.nn.Linear(2, 1)
pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
if (kept / "latest").exists():
    pace.load(kept)
    print("resumed at", pace.steps)
for x in worker.batches([torch.ones(2)] * 16, batch_size=4, epochs=3):
    model(x).sum().backward()
    if pace.step():
        if pace.steps == 2:
            pace.save(kept)
        if pace.steps == 4 and not life.exists():
            life.touch()
            time.sleep(600)
print("ended at", pace.steps)
"""


def watermark(path):
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as journal:
        return journal.execute("select steps from watermark").fetchone()[0]


@pytest.mark.slow
def test_after_a_kill_of_the_launcher_the_same_command_goes_on_from_the_checkpoint(tmp_path):
    path, out, life = tmp_path / "train.py", tmp_path / "out", tmp_path / "life"
    path.write_text(KEEPING)
    words = [*PACELINE, "run", "-np", "1", "--membership", "elastic", "--job", str(tmp_path / "job"), "--"]
    words += [sys.executable, str(path), str(tmp_path / "kept"), str(life)]
    with out.open("w") as stream:
        job = subprocess.Popen(words, env=ENVIRON, cwd=tmp_path, stdout=stream, stderr=subprocess.STDOUT)
    try:
        wait_for(life.exists)
        wait_for(lambda: watermark(tmp_path / "job" / "journal.db") == 4)
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait()
    done = subprocess.run(words, env=ENVIRON, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed at 2" in done.stdout
    assert "ended at 12" in done.stdout
    journal = Journal(tmp_path / "job" / "journal.db")
    assert journal.rollbacks() == [(2, 4, 2)]
    journal.close()
