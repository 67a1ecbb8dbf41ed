"""The folder of a job, its lock, and members that declare a long phase."""

import os
import signal
import subprocess
import time

import pytest

import paceline.elastic.presence as presence_module
from paceline.comm.claim import is_stopped
from paceline.elastic.door import lock_folder
from paceline.elastic.frames import ABSENT, FINISHED
from paceline.elastic.journal import Journal
from paceline.elastic.launch import kept_folder
from paceline.elastic.presence import ElasticPresence
from paceline.elastic.protocol import Group
from paceline.elastic.transports import DATA, LONG, STEP
from paceline.errors import PeerLost, WrongCommand


def test_a_later_start_goes_on_with_the_folder_and_its_token(tmp_path):
    folder = kept_folder(tmp_path / "job")
    token = (folder / "token").read_text()
    (folder / f"{ABSENT}-1").touch()
    assert kept_folder(folder) == folder
    assert (folder / "token").read_text() == token
    assert not (folder / f"{ABSENT}-1").exists()


def test_a_folder_with_files_of_the_user_is_refused_and_stays_as_it_is(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o700)
    names = ("token", "choices.json", "absent-0", "lock")
    for name in names:
        (folder / name).write_text("precious")
    with pytest.raises(WrongCommand, match="a new or empty folder"):
        kept_folder(folder)
    assert {path.name: path.read_text() for path in folder.iterdir()} == dict.fromkeys(names, "precious")


def test_a_folder_that_others_can_read_or_of_a_job_that_is_done_is_refused(tmp_path):
    folder = kept_folder(tmp_path / "job")
    folder.chmod(0o755)
    with pytest.raises(WrongCommand, match="others can read it"):
        kept_folder(folder)
    folder.chmod(0o700)
    (folder / FINISHED).touch()
    with pytest.raises(WrongCommand, match="has made all its steps"):
        kept_folder(folder)


def test_a_folder_has_one_coordinator(tmp_path):
    number = lock_folder(tmp_path)
    with pytest.raises(WrongCommand, match="another coordinator serves it"):
        lock_folder(tmp_path, seconds=0.0)
    os.close(number)
    os.close(lock_folder(tmp_path, seconds=0.0))


def test_a_member_is_dead_when_its_process_has_ended_and_not_before(tmp_path):
    process = subprocess.Popen(["sleep", "600"])
    journal = Journal(tmp_path / "journal.db")
    journal.begin(Group(1, ("a", "far"), 0), {"a": process.pid})
    assert not journal.is_dead("a")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert journal.is_dead("a")
    assert not journal.is_dead("far")  # nothing is known of its process
    journal.close()


class Frozen:
    """Counters of a rank that makes no progress."""

    def __init__(self, phase, stopped=False):
        self._phase, self._stopped = phase, stopped

    def stopped(self, rank):
        return self._stopped

    def beat(self):
        pass

    def fenced(self):
        return False

    def beats(self, rank):
        return 7

    def phase(self, rank):
        return self._phase

    def name(self, rank):
        return f"rank {rank}"


@pytest.mark.parametrize(
    ("phase", "data_silence", "stopped", "evicted"),
    [
        (STEP, 60.0, False, True),
        (LONG, 60.0, False, False),
        (DATA, 60.0, False, False),
        (DATA, 0.01, False, True),
        (DATA, 60.0, True, True),
    ],
)
def test_a_member_that_has_declared_a_phase_is_not_evicted(
    tmp_path, monkeypatch, phase, data_silence, stopped, evicted
):
    presence = ElasticPresence(kept_folder(tmp_path / "job"), "a")
    presence.group = Group(1, ("a", "b"), 0)
    monkeypatch.setattr(ElasticPresence, "silence", 0.01)
    monkeypatch.setattr(presence_module, "DATA_SILENCE", data_silence)
    counters = Frozen(phase, stopped)
    presence._watch(counters, [1])
    time.sleep(0.05)
    if not evicted:
        presence._watch(counters, [1])
        return
    with pytest.raises(PeerLost, match="rank 1 makes no progress"):
        presence._watch(counters, [1])
    assert presence._suspects == {"b"}


def test_a_process_that_a_signal_has_stopped_is_seen(tmp_path):
    process = subprocess.Popen(["sleep", "600"])
    try:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert is_stopped(process.pid)
    finally:
        process.kill()
        process.wait()
    assert not is_stopped(process.pid)


class Alone:
    """A transport of a group with one member."""

    rule = "shm"

    def about(self):
        return {}

    def enter(self, client, watch, silence):
        return None, None


def test_a_change_of_the_group_does_not_count_as_a_long_step(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(presence_module.time, "monotonic", lambda: now[0])
    presence = ElasticPresence(kept_folder(tmp_path / "job"), "a", transport=Alone())

    def commits(count, seconds):
        for _ in range(count):
            now[0] += seconds
            presence.count()

    assert presence.silence == 60.0
    for generation in (1, 2, 3):
        presence.client.group = Group(generation, ("a",), 0)
        presence._meet()
        now[0] += 5.0  # a frozen member was waited for
        commits(40, 0.05)
        assert presence.silence == 2.0
    commits(20, 3.0)
    assert presence.silence == pytest.approx(9.0)
