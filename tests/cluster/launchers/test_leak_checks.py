"""The fixtures of tests/conftest.py must fail when something is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"

LEAKY = """
import os, socket, subprocess, threading, time
import pytest

kept = []

def test_thread():
    event = threading.Event(); kept.append(event)
    threading.Thread(target=event.wait, daemon=True, name="lazy").start()

def test_process():
    kept.append(subprocess.Popen(["sleep", "30"]))

def test_zombie():
    pid = os.fork()
    if pid == 0:
        os._exit(0)

def test_port():
    s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); kept.append(s)

def test_shared_memory():
    open(f"/dev/shm/paceline-test-{os.getpid()}", "w").close()

def test_variable():
    os.environ["PACELINE_LEFT"] = "1"

def test_clean_after_a_leaky_one():
    assert "PACELINE_LEFT" not in os.environ

def test_brief_thread():
    threading.Thread(target=time.sleep, args=(0.1,)).start()

def teardown_module():
    kept[0].set(); kept[1].kill(); kept[1].wait(); kept[2].close(); os.waitpid(-1, 0)
    os.unlink(f"/dev/shm/paceline-test-{os.getpid()}")
"""

SKIPPING = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason="needs a GPU")
def test_cannot_run():
    pass
"""


def run_pytest(folder: Path, text: str, **environ: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.read_text().replace("PATIENCE = 1.0", "PATIENCE = 0.5"))
    (folder / "test_it.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)],
        env={**{k: v for k, v in os.environ.items() if k not in ("PACELINE_CI", "PYTEST_ADDOPTS")}, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.multi
def test_what_is_left_behind_fails_the_test_that_left_it(tmp_path: Path) -> None:
    outcome = run_pytest(tmp_path, LEAKY)
    errors = {line.split("::")[1].split()[0]: line for line in outcome.stdout.splitlines() if line.startswith("ERROR")}
    assert sorted(errors) == [
        "test_port", "test_process", "test_shared_memory", "test_thread", "test_variable", "test_zombie",
    ]  # fmt: skip
    for word in ("threads left behind: lazy", "sleep 30", "(zombie)", "port ", "paceline-test-", "PACELINE_LEFT"):
        assert word in outcome.stdout


@pytest.mark.multi
@pytest.mark.parametrize(("environ", "code"), [({}, 0), ({"PACELINE_CI": "1"}, 1)])
def test_a_skipped_test_is_visible_and_fails_in_ci(tmp_path: Path, environ: dict[str, str], code: int) -> None:
    outcome = run_pytest(tmp_path, SKIPPING, **environ)
    assert outcome.returncode == code, outcome.stdout
    assert "could not run: test_it.py::test_cannot_run: needs a GPU" in outcome.stdout
