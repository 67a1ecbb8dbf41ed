"""Processes are watched by pidfd: an exit is seen before the process is reaped, and a reused pid causes no error."""

import os
import subprocess
import time

import pytest

from paceline.comm.peers import Peers


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture(params=["handles", "no handles"])
def peers(request, monkeypatch):
    if request.param == "no handles":
        monkeypatch.setattr(os, "pidfd_open", lambda pid: (_ for _ in ()).throw(OSError(38, "not implemented")))
    found = Peers()
    yield found
    found.close()


def ends(peers, pid):
    limit = time.monotonic() + 5
    while not peers.ended(pid) and time.monotonic() < limit:
        time.sleep(0.001)
    return peers.ended(pid)


def test_a_process_that_ends_is_seen_before_it_is_reaped(peers, child):
    peers.watch([child.pid, os.getpid()])
    assert not peers.ended(child.pid)
    assert not peers.ended(os.getpid())
    child.kill()
    assert ends(peers, child.pid)


def test_a_process_that_had_ended_before_is_not_mistaken_for_a_later_one(peers, child):
    child.kill()
    child.wait()
    peers.watch([child.pid])
    assert peers.ended(child.pid)


def test_another_process_with_the_same_pid_counts_as_ended(peers, child, monkeypatch):
    peers.watch([child.pid])
    if not peers._handles:
        monkeypatch.setattr("paceline.comm.peers.start_time", lambda pid: "later")
    child.kill()
    assert ends(peers, child.pid)


def test_handles_are_given_back(child):
    before = len(os.listdir("/proc/self/fd"))
    peers = Peers()
    peers.watch([child.pid])
    peers.close()
    assert len(os.listdir("/proc/self/fd")) == before
