"""The choice of a comm for CUDA tensors, tested without a GPU."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.cluster.machine import machine
from paceline.comm import connect as connecting
from paceline.comm.connect import connect
from paceline.comm.position import Position, position
from paceline.errors import Refused, WrongCommand
from paceline.run.compose.compose import compose
from paceline.run.run import Run


def alone():
    return Position(0, 1, 0, None)


def test_one_rank_has_memory_where_its_tensors_are(monkeypatch):
    monkeypatch.setattr(connecting, "_torch", lambda where, choice, *_: SimpleNamespace(choice=choice))
    assert connect(alone(), cuda=True).choice == "nccl"
    assert connect(alone(), "nccl", cuda=True).choice == "nccl"
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
    """CUDA_VISIBLE_DEVICES, which the remedy names, is respected before workers start."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(Path, "glob", lambda *_: [Path(f"nvidia{k}") for k in range(gpus)])
    run = Run(workers=2, comm=comm)
    if not refused:
        assert compose(run, machine()).axes is not None
        return
    with pytest.raises(Refused, match=f"--comm {comm}.*CUDA_VISIBLE_DEVICES= "):
        compose(run, machine())


@pytest.mark.parametrize(
    "environ",
    [
        {"WORLD_SIZE": "0", "PACELINE_SERVERS": "1"},
        {"WORLD_SIZE": "-1", "PACELINE_SERVERS": "2"},
        {"WORLD_SIZE": "2", "PACELINE_SERVERS": "-1"},
        {"WORLD_SIZE": "2", "LOCAL_RANK": "-1"},
        {"WORLD_SIZE": "99999999999"},
        {"RANK": "-1"},
        {"RANK": "x"},
        {"WORLD_SIZE": "9" * 5_000},
    ],
)
def test_a_place_that_no_job_has_is_refused(environ):
    with pytest.raises(WrongCommand):
        position(environ)


def test_a_server_comes_after_the_workers():
    where = position({"RANK": "2", "WORLD_SIZE": "2", "PACELINE_SERVERS": "1"})
    assert where.serves
    assert where.all == 3
