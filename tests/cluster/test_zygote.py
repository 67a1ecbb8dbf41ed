"""Workers that are forked from a process with modules imported behave like those that are started one by one."""

import io
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.cluster.forking import Zygote, is_this_python
from paceline.cluster.job import LocalJob
from paceline.cluster.launchers.local import prepare
from paceline.cluster.output import Output
from paceline.cluster.restarts import Restarts
from paceline.errors import WorkerFailed

pytestmark = pytest.mark.multi

MARK = "colorsys"  # a module that no worker imports by itself
ENVIRON = {**os.environ, "OMP_NUM_THREADS": "2"}

SCRIPT = f"""
import os, random, sys
print("forked" if {MARK!r} in sys.modules else "spawned", os.getppid(), os.getsid(0) == os.getpid())
print("descriptors", len(os.listdir("/proc/self/fd")), "threads", os.environ["OMP_NUM_THREADS"], sys.argv[1:])
print("main", __name__, __file__ == sys.argv[0], sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
print("input", repr(sys.stdin.read()), "random", random.random())
import atexit
atexit.register(lambda: print("bye"))
"""


def run_job(tmp_path, text, words=(), modules=(MARK,), environ=ENVIRON, workers=1, before=lambda job: None):
    """Run a script as a job; return what rank 0 printed."""
    path = tmp_path / "train.py"
    path.write_text(text)
    folder = prepare(tmp_path / "job", workers)
    with LocalJob(folder, Output(folder, io.StringIO(), io.StringIO(), prefix=False), workers) as job:
        if modules:
            job.prepare_forks(modules, environ)
        before(job)
        for rank in range(workers):
            job.launch(rank, [sys.executable, *(words or [str(path)])], {**environ, "RANK": str(rank)})
        job.wait()
    return (folder / "rank-0.log").read_text()


def test_a_forked_worker_is_like_a_spawned_one(tmp_path):
    forked = run_job(tmp_path, SCRIPT, [str(tmp_path / "train.py"), "--lr", "1"])
    spawned = run_job(tmp_path, SCRIPT, [str(tmp_path / "train.py"), "--lr", "1"], modules=())
    assert forked.startswith(f"forked {os.getpid()} True")
    assert spawned.startswith(f"spawned {os.getpid()} True")
    lines = [text.replace("\x1b", "").split("random")[0].splitlines()[1:] for text in (forked, spawned)]
    assert lines[0] == lines[1]
    assert forked.endswith("bye\n")


def test_workers_of_one_zygote_draw_different_numbers(tmp_path):
    run_job(tmp_path, SCRIPT, workers=2)
    logs = [(tmp_path / "job" / f"rank-{rank}.log").read_text() for rank in (0, 1)]
    drawn = {float(line.split("random ")[1]) for log in logs for line in log.splitlines() if "random" in line}
    assert len(drawn) == 2
    assert random.random() not in drawn


@pytest.mark.parametrize("modules", [("torch",), ()], ids=["forked", "spawned"])
def test_workers_draw_different_numbers_from_torch(tmp_path, modules):
    run_job(tmp_path, "import torch; print(torch.initial_seed(), *torch.rand(2).tolist())", modules=modules, workers=2)
    logs = [(tmp_path / "job" / f"rank-{rank}.log").read_text().split() for rank in (0, 1)]
    assert all(a != b for a, b in zip(*logs, strict=True)), logs


def test_a_module_runs_as_with_the_flag_m(tmp_path):
    assert "3.0" in run_job(tmp_path, "", ["-m", "timeit", "-n", "1", "-r", "1", "-s", "print(3.0)", "pass"])


@pytest.mark.parametrize(
    ("text", "code"),
    [("import sys; sys.exit(7)", 7), ("raise ValueError('boom')", 1), ("import sys; sys.exit('no data')", 1)],
)
def test_the_exit_code_and_the_last_words_of_a_forked_worker_reach_the_launcher(tmp_path, text, code):
    with pytest.raises(WorkerFailed) as caught:
        run_job(tmp_path, text)
    assert f"exit code {code}" in str(caught.value)
    if "ValueError" in text:
        log = (tmp_path / "job" / "rank-0.log").read_text()
        assert "ValueError: boom" in log
        assert "zygote.py" not in log


def test_a_worker_that_dies_is_forked_again(tmp_path):
    once = tmp_path / "once"
    text = SCRIPT + f"\nimport pathlib, signal\nonce = pathlib.Path({str(once)!r})\n"
    text += (
        "if not once.exists():\n    once.touch()\n    sys.stdout.flush()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    def allow(job):
        job.restarts = Restarts("1")

    assert run_job(tmp_path, text, before=allow).count("forked") == 2


def test_without_its_zygote_the_launcher_spawns(tmp_path):
    def kill(job):
        os.kill(job._zygote.pid, signal.SIGKILL)
        time.sleep(0.05)

    assert run_job(tmp_path, SCRIPT, before=kill).startswith("spawned")


def test_a_worker_lives_on_when_its_zygote_is_killed(tmp_path):
    text = SCRIPT + "\nsys.stdout.flush()\nimport time\ntime.sleep(0.5)\nprint('alive')\nsys.exit(3)\n"
    killed = []

    def kill_later(job):
        launch = job.launch

        def launch_and_kill(*words):
            launch(*words)
            time.sleep(0.1)  # the zygote lets the worker begin right after it has sent its pid
            killed.append(os.kill(job._zygote.pid, signal.SIGKILL))

        job.launch = launch_and_kill

    with pytest.raises(WorkerFailed, match="exit code 3"):
        run_job(tmp_path, text, before=kill_later)
    log = (tmp_path / "job" / "rank-0.log").read_text()
    assert killed
    assert log.startswith("forked")
    assert "alive" in log


def test_a_process_with_threads_never_forks(tmp_path):
    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    (tmp_path / "threaded.py").write_text(text)
    environ = {**ENVIRON, "PYTHONPATH": str(tmp_path)}
    assert run_job(tmp_path, SCRIPT, modules=(MARK, "threaded"), environ=environ).startswith("spawned")


def test_a_command_that_would_start_differently_is_spawned(tmp_path):
    zygote = Zygote((MARK,), ENVIRON)
    try:
        assert zygote.takes([sys.executable, "train.py"], ENVIRON)
        assert not zygote.takes([sys.executable, "-O", "train.py"], ENVIRON)
        assert not zygote.takes(["sh", "train.sh"], ENVIRON)
        assert not zygote.takes([sys.executable, "train.py"], {**ENVIRON, "PYTHONHASHSEED": "7"})
    finally:
        zygote.close()
    assert not zygote.takes([sys.executable, "train.py"], ENVIRON)
    assert not is_this_python(str(tmp_path / "python"), ENVIRON)
    assert is_this_python(Path(sys.executable).name, {"PATH": str(Path(sys.executable).parent)})


NO_FORK = """
import os
from paceline.cluster import zygote
real, calls = os.fork, []
def fork():
    calls.append(1)
    if len(calls) == 2:
        raise BlockingIOError(11, "too many processes")
    return real()
os.fork = fork
try:
    print("became", zygote._fork([1, 2]))
except OSError as problem:
    print(problem)
"""
BEGIN = """
import os, sys
from paceline.cluster import zygote
pid, start = zygote._fork([1, 2])
if pid == 0:
    print("the worker runs")
    sys.exit()
if {begins}:
    os.write(start, b"!")
os.close(start)
"""


def said_by(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_zygote_that_cannot_fork_does_not_become_the_worker():
    assert said_by(NO_FORK) == "no worker could be forked\n"


def test_a_worker_begins_only_when_its_launcher_has_its_pid():
    assert said_by(BEGIN.format(begins=True)) == "the worker runs\n"
    assert said_by(BEGIN.format(begins=False)) == ""
