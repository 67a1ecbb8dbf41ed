"""SIGINT ends a rank, even where Python or an extension drops the KeyboardInterrupt."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.multi
ROOT = Path(__file__).parents[2]

BEGIN = "import os, signal, sys, weakref; signal.signal(signal.SIGINT, signal.default_int_handler); import paceline\n"
# torch imports numpy in C++ and drops what is raised there
IN_TORCH = """
class Hook:
    def find_spec(self, name, *_):
        if name == "numpy._core._add_newdocs":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Hook())
import torch
paceline.join()
"""
IN_A_CALLBACK = """
class Thing: pass
thing = Thing()
kept = weakref.ref(thing, lambda _: [os.kill(os.getpid(), signal.SIGINT), [k for k in range(9)]])
del thing
"""
SWALLOWED = """
try:
    os.kill(os.getpid(), signal.SIGINT)
except BaseException:
    pass
paceline.Chunk
"""
PLAIN = "os.kill(os.getpid(), signal.SIGINT)\n"
CAUGHT = """
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("saved")
"""


def ended(code, started_by_us=True):
    environ = {name: value for name, value in os.environ.items() if name != "PACELINE_GUARD"}
    environ |= {"PACELINE_GUARD": "x"} if started_by_us else {}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code + "print('went on')"],
        capture_output=True,
        text=True,
        env=environ,
        cwd=ROOT,
        timeout=120,
    )
    return done.returncode, "went on" in done.stdout, done.stdout


@pytest.mark.parametrize("code", [IN_TORCH, IN_A_CALLBACK, SWALLOWED, PLAIN])
def test_a_dropped_interrupt_ends_a_rank(code):
    status, went_on, text = ended(code)
    assert (status, went_on) == (-signal.SIGINT, False), text


def test_a_script_that_handles_the_interrupt_goes_on():
    assert ended(CAUGHT)[:2] == (0, True)


@pytest.mark.parametrize("code", [IN_A_CALLBACK, SWALLOWED])
def test_processes_of_others_keep_what_python_does(code):
    """The negative control: here the interrupt is lost."""
    assert ended(code, started_by_us=False)[:2] == (0, True)


def test_a_handler_of_the_script_stays():
    code = "import signal; f = lambda *_: print('mine'); signal.signal(signal.SIGINT, f); import paceline\n"
    code += "import os; os.kill(os.getpid(), signal.SIGINT)"
    environ = {**os.environ, "PACELINE_GUARD": "x"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, cwd=ROOT, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "mine\n")
