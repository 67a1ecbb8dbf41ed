"""The faults of `paceline chaos`: drawn from a seed, never at the last member, never at a process of somebody else."""

import os
import signal
import subprocess
import sys

import pytest

from paceline.elastic.nemesis import KINDS, Nemesis

STATE = {"members": ["0-101-1", "1-102-2", "2-103-3"], "most": 4, "pid": 99, "steps": 5}


def nemesis_of(seed=1, kinds=KINDS, ours=lambda pid: True):
    sent = []
    made = Nemesis(
        seed, launcher=1, join=lambda: 7, kinds=kinds, send=lambda *words: sent.append(words), clock=lambda: 10.0
    )
    made.is_ours = ours
    return made, sent


def test_the_same_seed_does_the_same():
    runs = []
    for _ in range(2):
        made, sent = nemesis_of(3)
        pauses = [made.pause(3.0) for _ in range(20) if made.strike(STATE) or True]
        runs.append((sent, pauses))
    assert runs[0] == runs[1]
    assert runs[0][0]


@pytest.mark.parametrize(
    ("kind", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP), ("leave", signal.SIGTERM)]
)
def test_a_fault_hits_a_member_and_never_the_last(kind, number):
    made, sent = nemesis_of(kinds=(kind,))
    assert made.strike({**STATE, "members": ["0-101-1"]}) is None
    assert made.strike(STATE).kind == kind
    ((pid, sent_number),) = sent
    assert (pid in (101, 102, 103), sent_number) == (True, number)


def test_a_member_that_is_stopped_or_leaves_counts_as_gone():
    made, sent = nemesis_of(kinds=("stop", "leave"))
    for _ in range(10):
        made.strike(STATE)
    assert len(sent) == 2
    made.thaw()
    assert signal.SIGCONT not in [number for _, number in sent]
    made.thaw(now=float("inf"))
    assert [number for _, number in sent].count(signal.SIGCONT) == [number for _, number in sent].count(signal.SIGSTOP)


def test_workers_join_up_to_the_limit_and_the_coordinator_is_killed():
    made, sent = nemesis_of(kinds=("join",))
    assert made.strike(STATE).pid == 7
    assert made.strike({**STATE, "most": 3}) is None
    made, sent = nemesis_of(kinds=("coordinator",))
    made.strike(STATE)
    assert sent == [(99, signal.SIGKILL)]


def test_a_process_of_somebody_else_is_never_hit():
    made, sent = nemesis_of(kinds=("kill", "coordinator"), ours=lambda pid: False)
    assert made.strike(STATE) is None
    assert sent == []
    real = Nemesis(1, launcher=1 << 22, join=lambda: 0)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert real.is_ours(child.pid)
        assert not real.is_ours(os.getpid())
        assert not real.is_ours(os.getppid())
    finally:
        child.communicate(b"\n")
    assert not real.is_ours(child.pid)
