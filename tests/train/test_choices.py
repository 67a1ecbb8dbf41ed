"""An explicit choice of the launcher wins over a script's arguments of `join` and `wrap`."""

import json

import pytest
import torch
from torch import nn

import paceline
from paceline.api import join as joining
from paceline.comm.shm import queue
from paceline.comm.thread import ThreadComm, ThreadGroup
from paceline.run.run import Run


@pytest.fixture
def launched(monkeypatch):
    """The environment that a launcher gives to rank 0."""

    def choose(workers=1, **choices):
        monkeypatch.setenv("WORLD_SIZE", str(workers))
        monkeypatch.setenv("PACELINE_CHOICES", json.dumps(choices))

    return choose


def engine(**arguments):
    """The engine of a script that wraps a weight and a bias, after one step."""
    model = nn.Linear(4, 1)
    with paceline.join():
        pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), **arguments)
        model(torch.ones(2, 4)).sum().backward()
        pace.step()
    return pace.engines[0]


@pytest.mark.parametrize(
    ("choices", "arguments", "chunks"),
    [
        ({}, {"schedule": "bsp"}, 1),
        ({"strategy": "wfbp"}, {"schedule": "bsp"}, 2),
        ({"schedule": "wfbp"}, {"schedule": "bsp"}, 2),
        ({"schedule": "wfbp"}, {"strategy": "allreduce"}, 2),
        ({"compress": "cast(bf16)"}, {"schedule": "wfbp"}, 2),  # an axis that was not chosen is the script's
    ],
    ids=str,
)
def test_a_strategy_of_the_launcher_replaces_everything_and_an_axis_that_axis(choices, arguments, chunks, launched):
    launched(**choices)
    assert len(engine(**arguments).chunks) == chunks


def profile(path, backward):
    """Layer times of the weight and the bias, in a file."""
    layout = [{"name": "bias", "numel": 1}, {"name": "weight", "numel": 4}]
    values = {"layout": layout, "forward": [0, 0], "forward_seconds": 1, "ready": [1, 2], "backward": backward}
    path.write_text(json.dumps({**values, "link": {"latency": 0, "bandwidth": 1e9}}))
    return str(path)


def test_a_profile_of_the_launcher_wins(launched, tmp_path):
    own, chosen = profile(tmp_path / "own.json", 3), profile(tmp_path / "chosen.json", 7)
    launched()
    assert engine(schedule="mgwfbp", profile=own).profile.backward == 3
    launched(profile=chosen)
    assert engine(schedule="mgwfbp", profile=own).profile.backward == 7


@pytest.mark.parametrize(
    ("choices", "arguments", "reached"),
    [
        ({}, {}, ("auto", Run().deadline)),
        ({}, {"comm": "gloo", "deadline": 3}, ("gloo", 3)),
        ({"comm": "shm", "deadline": 7}, {"comm": "gloo", "deadline": 3}, ("shm", 7)),
        ({"nodes": "2x2", "deadline": 7}, {"comm": "gloo"}, ("gloo", 7)),
    ],
    ids=str,
)
def test_comm_deadline_and_nodes_of_the_launcher_win(choices, arguments, reached, launched, monkeypatch):
    asked = []

    def connect(where, choice, deadline, cuda, buffer):
        asked.append((choice, deadline))
        return ThreadComm(where.rank, ThreadGroup(where.size))

    monkeypatch.setattr(joining, "connect", connect)
    monkeypatch.setattr(queue, "ENDING", 0.01)  # seconds; the other ranks do not exist
    launched(workers=4, **choices)
    with paceline.join(**arguments) as worker:
        assert worker.comm.placement == ((0, 0, 1, 1) if "nodes" in choices else (0, 0, 0, 0))
    assert asked == [reached]
