"""Signals that would end a process without cleanup end it in order."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.cluster.stop_requests import ended_in_order
from paceline.errors import Stopped


def work(number, taken_down):
    try:
        os.kill(os.getpid(), number)
        time.sleep(5)
    finally:
        os.kill(os.getpid(), number)
        taken_down.append(True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_raises_and_others_wait_for_the_end(number, code):
    before = signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL)
    taken_down = []
    try:
        with pytest.raises(Stopped) as stopped, ended_in_order():
            work(number, taken_down)
        assert (stopped.value.exit_code, taken_down) == (code, [True])
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_the_shell_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_in_order():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_before_its_workers_run_leaves_no_folder(number, tmp_path):
    """The signal arrives before the launcher waits for workers."""
    code = """
import os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from paceline.cli import main
from paceline.measure import measure
def busy(run):
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(20)
measure.places_of = busy
main(["run", "--model", "mlp", "--runs", sys.argv[2] + "/runs"])
"""
    argv = [sys.executable, "-c", code, str(int(number)), str(tmp_path)]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(argv, capture_output=True, text=True, cwd=Path(__file__).parents[2], env=environ, timeout=60)
    assert done.returncode == 128 + number, done.stdout + done.stderr
    assert list(tmp_path.glob("paceline-*")) == []
