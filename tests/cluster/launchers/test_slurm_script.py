"""The batch script of launcher slurm, and reading an allocation."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from paceline.cluster.launchers import MENU
from paceline.cluster.launchers.slurm import Slurm, allocated, numbers_of
from paceline.errors import WrongCommand
from paceline.types import Host

LOG = Path("/x/log")


def test_options_pass_through_to_the_script():
    launcher = MENU.make("slurm(partition=gpu, account=me, time=30, nodes=2, gres=gpu:4, options='--qos=low')")
    text = launcher.script(["paceline", "run", "--model", "a b"], 8, LOG)
    assert text.startswith("#!/bin/sh\n#SBATCH --job-name=paceline\n#SBATCH --ntasks=8\n#SBATCH --output=/x/log\n")
    for line in ("--partition=gpu", "--account=me", "--time=30", "--nodes=2", "--gres=gpu:4", "--qos=low"):
        assert f"#SBATCH {line}\n" in text
    assert text.endswith("exec paceline run --model 'a b'\n")
    assert "--no-requeue" in text


def test_a_preempted_job_is_started_again_if_wanted():
    text = Slurm(requeue=True).script(["paceline", "run"], 2, LOG)
    assert "#SBATCH --signal=B:TERM@60\n" in text
    assert 'scontrol requeue "$SLURM_JOB_ID"' in text


@pytest.mark.parametrize(("code", "again"), [(143, True), (3, False), (0, False)])
def test_the_script_passes_the_signal_on_and_waits_for_the_end(tmp_path, code, again):
    """The shell alone gets the signal. A command that needs a second to end is waited for, and its code decides."""
    for name, text in {
        "paceline": f"trap 'sleep 1; echo saved; exit {code}' TERM; echo up; while :; do sleep 0.1; done",
        "scontrol": 'echo "again: $*"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    script = tmp_path / "script"
    script.write_text(Slurm(requeue=True).script([str(tmp_path / "paceline"), "run"], 2, LOG))
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    process = subprocess.Popen(
        ["/bin/sh", str(script)], env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout.readline() == "up\n"
        process.terminate()
        said, _ = process.communicate(timeout=20)
    finally:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode == code
    assert said == "saved\n" + "again: requeue 7\n" * again


def test_an_option_cannot_add_lines_to_the_script():
    with pytest.raises(WrongCommand, match="has one line"):
        Slurm(partition="a\nrm -rf x").script([], 1, LOG)


def test_an_allocation_is_read():
    assert allocated({}) == ()
    environ = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a,b,c", "SLURM_TASKS_PER_NODE": "2(x2),1"}
    assert allocated(environ) == (Host("a", 2), Host("b", 2), Host("c", 1))
    del environ["SLURM_TASKS_PER_NODE"]
    assert allocated({**environ, "SLURM_JOB_CPUS_PER_NODE": "4(x3)"}) == (Host("a", 4), Host("b", 4), Host("c", 4))
    assert numbers_of("3") == [3]
    with pytest.raises(WrongCommand, match=r"2\(x3\),1"):
        numbers_of("two")


def test_an_agent_is_one_step_on_its_node():
    command = Slurm(container="/images/x.sqsh").command(Host("n7", 4))
    assert command[:4] == ["srun", "--nodes=1", "--ntasks=1", "--nodelist=n7"]
    assert "--container=/images/x.sqsh" in command
    assert command[-2:] == ["-m", "paceline.cluster.agent"]
