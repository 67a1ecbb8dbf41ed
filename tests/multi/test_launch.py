"""The local launcher with real processes: whoever dies, in whatever way, nothing is left and the cause is named."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from paceline.cluster.guard import Guard
from paceline.cluster.launchers.local import Local
from paceline.errors import Stopped, WorkerFailed

pytestmark = pytest.mark.multi

HEAD = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
rank, folder = int(os.environ["RANK"]), Path(os.environ["PACELINE_JOB"])

def ready(pid=0):
    (folder / f"{rank}.tmp").write_text(str(pid))
    (folder / f"{rank}.tmp").rename(folder / f"ready-{rank}")

def peers(n):
    while len(list(folder.glob("ready-*"))) < n:
        time.sleep(0.002)

def leave(**told):
    (folder / f"{rank}.tmp").write_text(json.dumps({"rank": rank, **told}))
    (folder / f"{rank}.tmp").rename(folder / f"rank-{rank}.failed.json")
"""
SLEEP = "ready(); time.sleep(60)"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); time.sleep(60)"
PARENT = "ready(subprocess.Popen(['sleep', '60']).pid); time.sleep(60)"

# A launcher in a process of its own; argv: folder, workers, code, what to do before the start.
LAUNCHER = """
import os, signal, sys
from pathlib import Path
from paceline.cluster import guard
from paceline.cluster.launchers import local
signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal, however the tests were started
signal.signal(signal.SIGHUP, signal.SIG_DFL)
exec(sys.argv[4])
job = local.Local().start(
    [sys.executable, "-S", "-c", sys.argv[3]], workers=int(sys.argv[2]), folder=Path(sys.argv[1]),
    environ=os.environ, prefix=True,
)
job.wait()
"""


def start(folder, code, workers=1, **settings):
    settings = {"prefix": True, "environ": os.environ, **settings}
    return Local().start([sys.executable, "-S", "-c", HEAD + code], workers=workers, folder=folder, **settings)


def launcher(folder, code, workers=2, before="", **settings):
    settings = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **settings}
    argv = [sys.executable, "-c", LAUNCHER, str(folder), str(workers), HEAD + code, before]
    return subprocess.Popen(argv, cwd=Path(__file__).parents[2], **settings)


def until(condition, seconds=10.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.002)


def all_ready(folder, workers):
    until(lambda: len(list(folder.glob("ready-*"))) == workers)


def noted_pids(folder):
    """Pids that workers noted when they were ready."""
    return [int(path.read_text()) for path in folder.glob("ready-*")]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def exists(pid):
    return Path(f"/proc/{pid}").exists()


def processes_of(folder):
    """Every process whose environment names the job's folder: workers and what they started."""
    mark = f"PACELINE_JOB={folder}".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in place.read_bytes().split(b"\0"):
                found.append(int(place.parent.name))
        except OSError:
            continue
    return found


def kill_all(folder):
    for pid in processes_of(folder):
        os.kill(pid, signal.SIGKILL)


def open_files():
    return len(os.listdir("/proc/self/fd"))


class Elsewhere(threading.Thread):
    """Does something to a job when its workers are ready, and notes when."""

    def __init__(self, folder, workers, action):
        super().__init__()
        self._folder, self._workers, self._action = folder, workers, action
        self.start()

    def run(self):
        all_ready(self._folder, self._workers)
        self.at = time.monotonic()
        self._action()


def fail_of(job):
    with pytest.raises(WorkerFailed) as caught:
        job.wait()
    return caught.value


def test_a_killed_worker_ends_the_job_and_is_named(tmp_path):
    files = open_files()
    job = start(tmp_path, SLEEP, workers=4)
    pids = job.pids
    killer = Elsewhere(tmp_path, 4, lambda: os.kill(pids[2], signal.SIGKILL))
    error = fail_of(job)
    assert time.monotonic() - killer.at < 5
    killer.join()
    assert f"rank 2 (pid {pids[2]}) was killed by SIGKILL" in str(error)
    assert error.exit_code == 1
    assert [(f.rank, f.pid, f.signal) for f in job.failures] == [(2, pids[2], "SIGKILL")]
    assert not [pid for pid in pids.values() if exists(pid)]
    for pid in pids.values():
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, 0)
    assert open_files() == files


def test_a_worker_that_ignores_sigterm_is_killed(tmp_path):
    job = start(tmp_path, "if rank: " + STUBBORN + "\nelse: peers(1); sys.exit(3)", workers=2)
    began = time.monotonic()
    error = fail_of(job)
    assert 1.9 < time.monotonic() - began < 5
    assert "rank 0" in str(error)
    assert "exit code 3" in str(error)
    assert not processes_of(tmp_path)


def test_a_worker_may_use_its_grace(tmp_path):
    goodbye = """
def bye(*_):
    print("saved"); sys.exit(0)
signal.signal(signal.SIGTERM, bye); ready(); time.sleep(60)
"""
    job = start(tmp_path, goodbye, workers=2)
    all_ready(tmp_path, 2)
    job.stop()
    assert (tmp_path / "rank-0.log").read_text() == (tmp_path / "rank-1.log").read_text() == "saved\n"


@pytest.mark.parametrize("end", ["sys.exit(0)", "os.kill(os.getpid(), 9)"])
def test_what_a_worker_started_ends_with_it(tmp_path, end):
    code = f"ready(subprocess.Popen(['sleep', '60']).pid); {end}"
    job = start(tmp_path, code, workers=2)
    if "exit" in end:
        job.wait()
    else:
        fail_of(job)
    children = noted_pids(tmp_path)
    assert children
    assert not [pid for pid in children if alive(pid)]


def test_a_child_that_left_the_group_does_not_hold_the_job_up(tmp_path):
    job = start(tmp_path, "ready(subprocess.Popen(['setsid', 'yes']).pid); time.sleep(0.2)", on_line=lambda *_: None)
    try:
        job.wait()
    finally:
        kill_all(tmp_path)


def test_a_rank_may_finish_early(tmp_path):
    job = start(tmp_path, "if rank: ready(); time.sleep(0.4)", workers=2)
    job.wait()
    job.wait()
    assert job.failures == []


@pytest.mark.parametrize(("code", "exit_code"), [(1, 1), (2, 2), (3, 1)])
def test_exit_code_2_is_passed_on(tmp_path, code, exit_code):
    job = start(tmp_path, f"sys.exit({code})")
    assert fail_of(job).exit_code == exit_code
    assert job.failures[0].exit_code == code
    assert fail_of(job).exit_code == exit_code


def test_the_failing_workers_own_text_is_shown(tmp_path):
    code = """
ready(); peers(3)
if rank == 1:
    leave(step=7, error="ValueError: a bad batch", traceback="Traceback...", exit_code=1); sys.exit(1)
time.sleep(60)
"""
    job = start(tmp_path, code, workers=3)
    assert "rank 1 (pid" in str(error := fail_of(job))
    assert "exit code 1 at step 7: ValueError: a bad batch" in str(error)
    assert job.failures[0].traceback == "Traceback..."


def test_without_a_failure_file_the_last_line_on_stderr_is_shown(tmp_path):
    assert "RuntimeError: out of luck" in str(fail_of(start(tmp_path, "raise RuntimeError('out of luck')")))


def test_the_cause_is_an_exception_though_other_text_follows(tmp_path):
    bar = "import atexit\natexit.register(lambda: sys.stderr.write('\\r 40%|####  | 4/10\\nbye'))\n"
    code = bar + "raise KeyError('label')"
    error = fail_of(start(tmp_path, code))
    assert (tmp_path / "rank-0.log").read_text().endswith("bye\n")
    assert "ended with exit code 1: KeyError: 'label'. try:" in str(error)


def test_a_secret_of_the_environment_is_not_in_the_error(tmp_path):
    code = "raise RuntimeError(f'refused: {os.environ[\"STORE_TOKEN\"]}')"
    error = fail_of(start(tmp_path, code, environ={**os.environ, "STORE_TOKEN": "tiger-lily"}))
    assert "RuntimeError: refused: ***" in str(error)


def test_a_rank_that_native_code_ended_is_named_with_the_calls_of_all(tmp_path):
    code = """
(folder / f"rank-{rank}.call").write_text(["allreduce of 4", "allgather of 6"][rank])
ready(); peers(2)
if rank == 1:
    os.kill(os.getpid(), signal.SIGABRT)
time.sleep(60)
"""
    text = str(fail_of(start(tmp_path, code, workers=2)))
    assert "SIGABRT" in text
    assert "\n  last call of rank 0: allreduce of 4\n  last call of rank 1: allgather of 6" in text


@pytest.mark.parametrize("seconds", [0.1, 0.6])
def test_the_cause_is_named_though_others_end_first(tmp_path, seconds):
    code = f"""
ready(); peers(3)
if rank == 1:
    time.sleep({seconds}); leave(error="ValueError: the cause", exit_code=1); sys.exit(1)
leave(error="PeerLost: rank 1 left", exit_code=1); sys.exit(1)
"""
    job = start(tmp_path, code, workers=3)
    assert "rank 1 (pid" in str(error := fail_of(job))
    assert "the cause" in str(error)
    assert [f.consequence for f in job.failures] == [False, True, True]


def test_the_cause_is_named_though_it_has_not_ended(tmp_path):
    code = """
ready(); peers(2)
if rank == 1:
    leave(error="ValueError: the cause", exit_code=1); time.sleep(60)
time.sleep(0.1); leave(error="PeerLost: rank 1 left", exit_code=1); sys.exit(1)
"""
    assert "ValueError: the cause" in str(fail_of(start(tmp_path, code, workers=2)))


def test_a_signal_is_the_cause_of_errors_around_it(tmp_path):
    code = """
ready(); peers(3)
if rank == 2:
    time.sleep(0.15); os.kill(os.getpid(), signal.SIGSEGV)
leave(error="OSError: connection reset", exit_code=1); sys.exit(1)
"""
    assert "rank 2 (pid" in str(error := fail_of(start(tmp_path, code, workers=3)))
    assert "SIGSEGV" in str(error)


def test_a_flood_of_lines_arrives_whole_and_in_order(tmp_path):
    got = {}

    def on_line(rank, stream, line):
        got.setdefault((rank, stream), []).append(line)

    code = """
for i in range(50_000):
    sys.stdout.write(f"{i} of {rank}\\n")
    if i % 10 == 0:
        sys.stderr.write(f"{i} on stderr\\n")
sys.stdout.write("no newline at the end")
"""
    start(tmp_path, code, workers=3, on_line=on_line, environ={**os.environ}).wait()
    for rank in range(3):
        assert got[rank, "stdout"] == [f"{i} of {rank}" for i in range(50_000)] + ["no newline at the end"]
        assert got[rank, "stderr"] == [f"{i} on stderr" for i in range(0, 50_000, 10)]
        assert len((tmp_path / f"rank-{rank}.log").read_text().splitlines()) == 55_001


def test_a_flood_on_the_terminal_carries_its_ranks(tmp_path):
    code = "print('\\n'.join(f'line {i}' for i in range(20_000)))"
    with launcher(tmp_path, code, workers=2, stdout=subprocess.PIPE) as process:
        lines = process.stdout.read().decode().splitlines()
    assert process.returncode == 0
    for rank in range(2):
        mine = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] line {i}" for i in range(20_000)]
    assert len(lines) == 40_000


def test_a_reader_that_leaves_does_not_end_the_run(tmp_path):
    code = "print('\\n'.join(f'line {i}' for i in range(20_000)))"
    with launcher(tmp_path, code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (0, b"")
    assert len((tmp_path / "rank-1.log").read_text().splitlines()) == 20_000


FLOOD_FOREVER = """
ready()
if rank == 0:
    time.sleep(60)
while True:
    print("x" * 100)
"""


def test_a_blocked_terminal_does_not_hide_a_death(tmp_path):
    with launcher(tmp_path, FLOOD_FOREVER, stdout=subprocess.PIPE) as process:
        all_ready(tmp_path, 2)
        time.sleep(0.3)
        victim = next(p for p in processes_of(tmp_path) if b"RANK=0" in Path(f"/proc/{p}/environ").read_bytes())
        os.kill(victim, signal.SIGKILL)
        assert process.wait(5) == 1
    assert not processes_of(tmp_path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("work", [PARENT, STUBBORN, FLOOD_FOREVER], ids=["parent", "stubborn", "blocked"])
def test_a_signal_to_the_launcher_ends_everybody(tmp_path, number, code, work):
    with launcher(tmp_path, work, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        all_ready(tmp_path, 2)
        time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(5) == code
        assert process.stderr.read() == b""
    assert not processes_of(tmp_path)


def test_a_second_ctrl_c_kills_at_once(tmp_path):
    with launcher(tmp_path, STUBBORN) as process:
        all_ready(tmp_path, 2)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert len(processes_of(tmp_path)) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(1) == 130
    assert not processes_of(tmp_path)


def test_kill_9_of_the_launcher_takes_the_workers_and_their_children_along(tmp_path):
    with launcher(tmp_path, PARENT, workers=3) as process:
        all_ready(tmp_path, 3)
        assert len(processes_of(tmp_path)) == 6
        process.kill()
        until(lambda: not processes_of(tmp_path), seconds=2)


def test_a_launcher_that_is_killed_while_it_starts_a_worker_leaves_none(tmp_path):
    """The guard has not been told the worker's group yet."""
    with launcher(tmp_path, SLEEP, workers=2, before="guard.Guard.add = lambda *_: os.kill(os.getpid(), 9)") as process:
        assert process.wait(10) == -signal.SIGKILL
        until(lambda: not processes_of(tmp_path), seconds=2)


def test_the_guard_spares_a_group_whose_number_was_used_again():
    guard, bystander = Guard(), subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        guard._pipe.write(f"{bystander.pid} 1\n".encode())
        guard._pipe.close()
        guard._shell.wait(5)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_without_the_guard_workers_outlive_the_launcher(tmp_path):
    """The negative control of the test above."""
    with launcher(tmp_path, PARENT, workers=3, before="guard.SCRIPT = 'cat'") as process:
        all_ready(tmp_path, 3)
        process.kill()
        process.wait()
        time.sleep(0.5)
        survivors = len(processes_of(tmp_path))
        kill_all(tmp_path)
        until(lambda: not processes_of(tmp_path))
    assert survivors == 6


def test_the_guard_leaves_with_the_launcher(tmp_path):
    job = start(tmp_path, SLEEP)
    guard = job._guard.pid
    assert alive(guard)
    job.stop()
    assert not exists(guard)


def test_stop_may_be_called_twice_and_by_a_with_statement(tmp_path):
    files = open_files()
    with start(tmp_path, SLEEP, workers=2) as job:
        all_ready(tmp_path, 2)
        job.stop()
        job.stop()
    assert "stopped before its workers ended" in str(fail_of(job))
    assert not processes_of(tmp_path)
    assert open_files() == files


def test_stop_from_another_thread_ends_a_wait(tmp_path):
    job = start(tmp_path, SLEEP)
    stopper = Elsewhere(tmp_path, 1, job.stop)
    assert "was stopped" in str(fail_of(job))
    stopper.join()


def test_wait_in_another_thread_leaves_signals_alone(tmp_path):
    job = start(tmp_path, "pass", workers=2)
    waiter = threading.Thread(target=job.wait)
    waiter.start()
    waiter.join(10)
    assert job.failures == []


def test_on_line_may_stop_the_job(tmp_path):
    def on_line(rank, stream, line):
        job.stop()

    job = start(tmp_path, "print('hello'); time.sleep(60)", on_line=on_line)
    assert "was stopped" in str(fail_of(job))


def test_an_error_in_on_line_stops_the_job_and_is_raised(tmp_path):
    job = start(tmp_path, "print('hello'); time.sleep(60)", workers=2, on_line=lambda *_: {}["mine"])
    with pytest.raises(KeyError, match="mine"):
        job.wait()
    assert not processes_of(tmp_path)


def test_signals_are_handed_back(tmp_path):
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    try:
        ours = signal.getsignal(signal.SIGTERM)
        job = start(tmp_path, SLEEP)
        sender = Elsewhere(tmp_path, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Stopped) as caught:
            job.wait()
        sender.join()
        assert (caught.value.exit_code, str(caught.value)) == (143, "stopped by SIGTERM")
        assert signal.getsignal(signal.SIGTERM) is ours
        assert seen == []
    finally:
        signal.signal(signal.SIGTERM, before)


def test_many_jobs_leave_no_files_open(tmp_path):
    files = open_files()
    for _ in range(5):
        start(tmp_path, "print(1)", workers=2).wait()
    assert open_files() == files


def test_workers_see_their_place(tmp_path):
    code = "ready(json.dumps({k: os.environ[k] for k in ('RANK', 'WORLD_SIZE', 'MASTER_PORT', 'PACELINE_STORE')}))"
    start(tmp_path, code, workers=3).wait()
    seen = [json.loads((tmp_path / f"ready-{rank}").read_text()) for rank in range(3)]
    assert [place["RANK"] for place in seen] == ["0", "1", "2"]
    assert {place["WORLD_SIZE"] for place in seen} == {"3"}
    assert len({place["MASTER_PORT"] for place in seen}) == 1
    assert {place["PACELINE_STORE"] for place in seen} == {str(tmp_path / "store")}
