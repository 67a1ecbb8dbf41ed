"""Ctrl-C at any moment: one line, exit code 130, nothing left."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.multi
ROOT = Path(__file__).parents[2]

# Sends itself SIGINT when a module is looked for; argv: the module, then the words of the command.
INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal, however the tests were started
module = sys.argv.pop(1)
class Hook:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Hook())
from paceline.__main__ import main
main()
"""
STARTED = INTERRUPTED.replace("sys.argv.pop(1)", "''")
SMALL = ["--model", "mlp", "--batch-size", "4", "--steps", "2", "--repeats", "200", "--warmup", "1"]


def start(code, *words, **environ):
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environ},
    )


@pytest.mark.parametrize("module", ["typer", "pydantic", "paceline.cli.options", "paceline.cli.topology"])
def test_control_c_while_modules_are_loaded_is_one_line(module):
    process = start(INTERRUPTED, module, "models")
    assert (*process.communicate(timeout=60), process.returncode) == ("", "interrupted\n", 130)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("paceline.measure.measure", ["run", "--model", "mlp"]),
        ("paceline.race.script", ["run", "--", "true"]),
        ("paceline.race.race", ["race", "--model", "mlp"]),
        ("paceline.cluster.lab.network", ["lab"]),
        ("paceline.cluster.doctor", ["doctor"]),
        ("paceline.run.explain", ["explain", "--model", "mlp"]),
        ("paceline.report.report", ["report", "."]),
        ("paceline.race.reproduce", ["reproduce", "x.json"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_control_c_while_a_command_loads_what_it_needs_is_one_line(module, words, tmp_path):
    process = start(INTERRUPTED, module, *words, PACELINE_RUNS=str(tmp_path / "runs"), TMPDIR=str(tmp_path))
    assert (*process.communicate(timeout=60), process.returncode) == ("", "interrupted\n", 130)
    assert not list(tmp_path.glob("paceline-*"))


def interrupted_when(process, ready):
    """Both outputs after SIGINT at the moment when `ready()` holds."""
    limit = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < limit
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=30)


def test_control_c_during_a_run_leaves_nothing(tmp_path):
    process = start(STARTED, "run", "-np", "2", *SMALL, PACELINE_RUNS=str(tmp_path / "runs"), TMPDIR=str(tmp_path))
    _, errors = interrupted_when(process, lambda: list(tmp_path.glob("paceline-*/rank-1.log")))
    assert (errors, process.returncode) == ("interrupted\n", 130)
    assert not list(tmp_path.glob("paceline-*"))
    assert not list(tmp_path.glob("runs/*.json"))


@pytest.mark.slow
def test_control_c_during_a_race_names_what_is_kept(tmp_path):
    runs = tmp_path / "runs"
    words = ["race", "-np", "1", "--rounds", "1", *SMALL[:-3], "2", "--warmup", "1"]
    process = start(STARTED, *words, PACELINE_RUNS=str(runs), TMPDIR=str(tmp_path))
    output, errors = interrupted_when(process, lambda: list(runs.glob("*/*.json")))
    *progress, last = errors.splitlines()  # the line of the start that had just ended may come before SIGINT or not
    assert (last, process.returncode) == ("interrupted", 130)
    assert all(re.match(r"round 1/1 ", line) for line in progress), errors
    assert re.search(r"stopped: 1 records? (is|are) kept; the same command goes on with the race", output)
    assert not list(tmp_path.glob("paceline-*"))
