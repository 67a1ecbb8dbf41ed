"""Which comm a process gets for tensors of a GPU, as far as it can be seen without one."""

from pathlib import Path

import pytest

from paceline.comm import connect as connecting
from paceline.comm.connect import Position, connect
from paceline.compose import compose
from paceline.errors import Refused, WrongCommand
from paceline.jobs.measure import machine
from paceline.run import Run


def alone():
    return Position(0, 1, 0, None)


def test_one_rank_has_memory_where_its_tensors_are(monkeypatch):
    monkeypatch.setattr(connecting, "_torch", lambda where, choice, nodes, deadline: choice)
    assert connect(alone(), cuda=True) == "nccl"
    assert connect(alone(), "nccl", cuda=True) == "nccl"
    assert type(connect(alone())).__name__ == "ThreadComm"


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("choice", ["gloo", "shm"])
def test_memory_of_the_host_is_refused_for_tensors_of_a_gpu(choice, size):
    with pytest.raises(WrongCommand, match=f"--comm {choice}.*CUDA_VISIBLE_DEVICES= "):
        connect(Position(0, size, 0, None), choice, cuda=True)


@pytest.mark.parametrize("comm", ["gloo", "shm"])
@pytest.mark.parametrize(
    ("gpus", "visible", "refused"),
    [(0, None, False), (1, None, True), (2, "0", True), (2, "", False), (2, "-1", False)],
)
def test_a_run_that_would_be_refused_in_its_workers_does_not_start(monkeypatch, comm, gpus, visible, refused):
    """What hides the GPUs from the workers, which is the remedy, is seen before they start."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(Path, "glob", lambda *_: [Path(f"nvidia{k}") for k in range(gpus)])
    run = Run(workers=2, comm=comm)
    if not refused:
        assert compose(run, machine()) is not None
        return
    with pytest.raises(Refused, match=f"--comm {comm}.*CUDA_VISIBLE_DEVICES= "):
        compose(run, machine())
