"""Loops that somebody else owns: transformers.Trainer prints DDP's losses, and Lightning equals one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = [pytest.mark.multi, pytest.mark.slow]


def seen_by(script, *arguments, tmp_path, size=2):
    out = tmp_path / f"{'-'.join(arguments)}-{size}.json"
    command = [sys.executable, "-m", "paceline", "run", "-np", str(size), "--", sys.executable, str(HERE / script)]
    environ = {**os.environ, "PACELINE_RUNS": str(tmp_path / "runs")}
    done = subprocess.run([*command, *arguments, str(out)], capture_output=True, text=True, timeout=170, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


def test_trainer_prints_the_losses_of_ddp_and_exchanges_once_per_step(tmp_path):
    ddp, ours, hook = (seen_by("trainer.py", mode, tmp_path=tmp_path) for mode in ("ddp", "paceline", "hook"))
    assert ours["losses"] == pytest.approx(ddp["losses"], abs=1e-5)
    assert ours["exchanges"] == len(ours["losses"]) == 4, "two backwards per step, exchanged once"
    assert (ddp["model"], ours["model"], hook["model"]) == (
        "DistributedDataParallel",
        "BertForMaskedLM",
        "DistributedDataParallel",
    )
    assert hook["losses"] != ddp["losses"], "gradients were rounded to bf16 on their way"
    assert hook["losses"] == pytest.approx(ddp["losses"], abs=1e-2)


def test_a_lightning_loop_on_two_workers_equals_one(tmp_path, monkeypatch):
    # where mpi4py is installed, Lightning starts Open MPI to look for ranks, and its segments stay in /dev/shm
    monkeypatch.setenv("OMPI_MCA_btl_sm_backing_directory", str(tmp_path))
    one, two = (seen_by("lit.py", tmp_path=tmp_path, size=size) for size in (1, 2))
    assert one["steps"] == two["steps"] == 8
    assert two["weights"] == pytest.approx(one["weights"], abs=1e-12)
