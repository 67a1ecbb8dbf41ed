"""Workloads of a user's own for tests of what goes wrong."""

import os

import torch

from paceline import Workload


def nan_on_rank_one():
    """A loss that is NaN on rank 1 from the third step on."""
    model, calls = torch.nn.Linear(4, 2), []

    def loss(model, batch):
        calls.append(1)
        bad = os.environ.get("RANK") == "1" and len(calls) > 2
        return model(batch).sum() * (float("nan") if bad else 1.0)

    return Workload(model, loss, lambda ids: torch.ones(len(ids), 4), unit="row")


def nothing_to_train():
    return torch.nn.Identity()


def not_a_model():
    return 42


def slow():
    """Steps of a quarter of a second, to have time to kill somebody."""
    import time

    model = torch.nn.Linear(4, 2)

    def loss(model, batch):
        time.sleep(0.25)
        return model(batch).sum()

    return Workload(model, loss, lambda ids: torch.ones(len(ids), 4), unit="row")


def slow_on_rank_zero():
    """Rank 0 takes a twentieth of a second longer than the others."""
    import time

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

    def loss(model, batch):
        time.sleep(0.05 if os.environ.get("RANK") == "0" else 0.0)
        return model(batch).square().mean()

    return Workload(model, loss, lambda ids: torch.ones(len(ids), 4), unit="row")
