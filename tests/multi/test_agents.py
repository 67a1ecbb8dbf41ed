"""Agents: output, files and failures of several hosts arrive at one launcher, and nothing outlives it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.cluster.agent import Channel
from paceline.cluster.doctor_hosts import examine_hosts
from paceline.errors import PacelineError, Stopped, WorkerFailed
from tests.cluster.agents import Agents, hosts, start
from tests.multi.test_launch import alive, until

pytestmark = pytest.mark.multi
ROOT = Path(__file__).parents[2]
SLEEP = "import time; print('up', flush=True); time.sleep(60)"


def python(code):
    return [sys.executable, "-S", "-c", code]


def children(pid):
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def agent_pids(job):
    return [link.process.pid for link in job._links]


def test_lines_files_and_variables_come_back(tmp_path):
    code = """
import json, os, sys
rank = os.environ["RANK"]
folder = os.environ["PACELINE_JOB"]
print("hello of", rank)
print("to stderr", file=sys.stderr)
names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")
text = json.dumps([json.load(open(folder + "/run.json")), *(os.environ[name] for name in names)])
open(f"{folder}/rank-{rank}.json", "w").write(text + " " * 700_000)
open(f"{folder}/other.txt", "w").write("stays there")
"""
    (tmp_path / "run.json").write_text('{"a": 1}')
    lines = []
    with start(tmp_path, python(code), each=2, on_line=lambda *line: lines.append(line)) as job:
        job.wait()
    assert sorted(line for line in lines if line[1] == "stdout") == [(r, "stdout", f"hello of {r}") for r in range(4)]
    assert (job.results() / "rank-3.log").read_text() in ("hello of 3\nto stderr\n", "to stderr\nhello of 3\n")
    found = [json.loads((job.results() / f"rank-{rank}.json").read_text()) for rank in range(4)]
    assert found == [[{"a": 1}, "4", str(r % 2), "2", str(r // 2), "127.0.0.1", "lo"] for r in range(4)]
    assert not (tmp_path / "other.txt").exists()
    assert not list(Path("/tmp").glob(f"paceline-*-{agent_pids(job)[0]}-*")), "the agent removed its folder"


def test_a_failure_names_rank_and_host_and_ends_the_others(tmp_path):
    code = "import os, sys, time\nif os.environ['RANK'] == '2': time.sleep(1); 1 / 0\ntime.sleep(60)"
    job = start(tmp_path, python(code), each=2)
    with job, pytest.raises(WorkerFailed, match=r"rank 2 \(b, pid \d+\) ended with exit code 1: ZeroDivisionError"):
        job.wait()
    assert job.failures[0].rank == 2
    until(lambda: not any(alive(pid) for pid in job.pids.values()))


def test_a_killed_agent_is_named_and_its_ranks_end_with_it(tmp_path):
    job = start(tmp_path, python(SLEEP), each=2, on_line=lambda *_: None)
    until(lambda: _turned(job) and len(job.pids) == 4, 30)
    os.kill(agent_pids(job)[1], signal.SIGKILL)
    with job, pytest.raises(WorkerFailed, match=r"b is lost: its agent ended.*it had ranks 2, 3"):
        job.wait()
    until(lambda: not any(alive(pid) for pid in job.pids.values()))


def test_a_stopped_agent_is_lost_after_its_silence_and_everything_ends(tmp_path):
    """A cut link looks like this: nothing closes, nothing is heard."""
    job = start(tmp_path, python(SLEEP), launcher=Agents(silence=3), on_line=lambda *_: None)
    until(lambda: _turned(job) and len(job.pids) == 2, 30)
    stopped = agent_pids(job)[0]
    os.kill(stopped, signal.SIGSTOP)
    with job, pytest.raises(WorkerFailed, match=r"a is lost: nothing was heard of it for 3 s"):
        job.wait()
    until(lambda: not any(alive(pid) for pid in job.pids.values()), 15)


def _turned(job):
    """Let the job handle what has arrived, as wait() would."""
    job._turn(0.05)
    return True


def test_an_agent_ends_when_its_launcher_is_silent(tmp_path):
    """The other side of a cut: the agent hears nothing any more, and its stdin stays open."""
    source, feed = os.pipe()
    sink = os.open(os.devnull, os.O_WRONLY)
    channel = Channel(source, sink, silence=0.3)
    ended = threading.Event()
    channel.on_end = ended.set
    listener = threading.Thread(target=channel._listen)
    timer = threading.Timer
    threading.Timer = lambda *_: threading.Thread(target=lambda: None)
    try:
        listener.start()
        os.write(feed, b'{"kind": "beat"}\n')
        assert ended.wait(10)
    finally:
        threading.Timer = timer
        listener.join()
        for number in (source, feed, sink):
            os.close(number)
    assert "nothing was heard of the launcher" in channel.why


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=["kill -9", "Ctrl-C", "TERM"])
def test_nothing_outlives_the_launcher(tmp_path, number):
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.cluster.agents import start
from pathlib import Path
with start(Path({str(tmp_path)!r}), [sys.executable, "-S", "-c", {SLEEP!r}], each=2) as job:
    job.wait()
"""
    head = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    seen = [head.stdout.readline() for _ in range(4)]
    assert sorted(seen) == [f"[{rank}] up\n".encode() for rank in range(4)]
    agents = children(head.pid)
    ranks = [pid for agent in agents for pid in children(agent)]
    head.send_signal(number)
    code = head.wait(15)
    head.stdout.close()
    assert code == {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    until(lambda: not any(alive(pid) for pid in [*agents, *ranks]), 15)


def test_a_host_with_other_software_is_refused_before_anything_starts(tmp_path):
    mark = tmp_path / "started"
    other = "import sys, paceline.cluster.facts as f; f.VERSION = '9.9'; import paceline.cluster.agent as a; a.main([])"
    launcher = Agents(program=(sys.executable, "-c", other))
    with pytest.raises(PacelineError, match=r"a has paceline 9\.9, this machine .*; b has paceline 9\.9") as caught:
        start(tmp_path, ["touch", str(mark)], launcher=launcher)
    assert not isinstance(caught.value, WorkerFailed)
    assert not mark.exists()


def test_a_host_without_an_agent_is_named_with_its_last_words(tmp_path):
    launcher = Agents(program=("sh", "-c", "echo Welcome; echo sh: python: not found >&2; exit 127"))
    with pytest.raises(PacelineError, match=r"nothing was started.*python: not found.*try: .*ssh\(python=PATH\)"):
        start(tmp_path, ["true"], launcher=launcher)


def test_the_greeting_of_a_login_shell_is_no_message(tmp_path):
    greet = f"echo 'Welcome to b'; echo; exec {sys.executable} -m paceline.cluster.agent"
    with start(tmp_path, ["true"], launcher=Agents(program=("sh", "-c", greet))) as job:
        job.wait()


def test_a_stop_from_another_thread_ends_the_job(tmp_path):
    job = start(tmp_path, python(SLEEP), on_line=lambda *_: threading.Thread(target=job.stop).start())
    with pytest.raises(WorkerFailed, match="stopped before its workers ended"):
        job.wait()
    assert not isinstance(job, Stopped)
    until(lambda: not any(alive(pid) for pid in job.pids.values()))


def test_a_command_that_does_not_exist_is_refused(tmp_path):
    with start(tmp_path, ["no-such-program"]) as job, pytest.raises(WorkerFailed, match="no-such-program cannot be"):
        job.wait()


def test_files_of_an_agent_have_known_names(tmp_path):
    from paceline.cluster.agent_link import AgentLink
    from paceline.types import Host

    source, feed = os.pipe()
    link = AgentLink(Host("a"), [0], source, -1)
    os.write(feed, b'\x1e{"kind": "file", "name": "../../evil", "part": ""}\n')
    link.read(tmp_path, lambda *_: None)
    assert "no message" in link.lost
    link.kill()
    os.close(feed)
    assert not list(tmp_path.iterdir())


def test_silence_is_not_confused_with_a_slow_start(tmp_path):
    """The negative control: a rank that says nothing for longer than the silence is fine while its agent beats."""
    began = time.monotonic()
    with start(tmp_path, python("import time; time.sleep(5)"), launcher=Agents(silence=4)) as job:
        job.wait()
    assert time.monotonic() - began > 5


def test_doctor_says_what_would_fail_on_hosts():
    findings = {finding.what: finding for finding in examine_hosts(hosts(2), Agents())}
    assert {finding.state for name, finding in findings.items() if "software" in name or "ports" in name} == {"ok"}
    assert findings["b: ports"].text == "reaches the first host"
    assert findings["b: folder"].state == "ok"
    assert "lo 127.0.0.1" in findings["a: interfaces"].text
    other = "import sys, paceline.cluster.facts as f; f.VERSION = '9.9'; import paceline.cluster.agent as a; a.main([])"
    wrong = [replace(host, interface="eth9") for host in hosts(2)]
    findings = {f.what: f for f in examine_hosts(wrong, Agents(program=(sys.executable, "-c", other)))}
    assert findings["a: software"].state == "bad"
    assert "no eth9; it has lo 127.0.0.1" in findings["b: interfaces"].text
