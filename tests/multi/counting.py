"""A table with one weight per sample. Its gradient shows which samples an update used, and how often.

    loss = mean of the weights of a batch;  with sgd(lr=1), a use takes 1 / (samples of the update) off the weight

As a model it is tests.multi.counting:table; as a user's script: counting.py FOLDER BATCH [drop].
"""

import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import ConcatDataset, TensorDataset

import paceline
from paceline import Workload

SHARDS = (770, 1, 5, 1201, 333, 900, 64, 2048, 2, 1500, 1024, 1100, 1059)
RECORDS = sum(SHARDS)
EPOCHS = 2


class Table(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes, dtype=torch.float64))

    def forward(self, ids):
        return self.weight[ids]


def note(log, ids):
    with open(f"{log}.{os.environ['RANK']}", "a") as file:
        file.write(" ".join(map(str, ids.tolist())) + "\n")


def table(*, classes=RECORDS, log=""):
    """A workload whose labels are the numbers of the samples."""

    def loss(model, batch):
        _, ids = batch
        note(log, ids)
        return model(ids).mean()

    return Workload(Table(classes), loss, lambda ids: (ids, ids))


def main(folder, batch, drop):
    worker = paceline.join()
    model = Table(RECORDS)
    pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
    parts = torch.arange(RECORDS).split(SHARDS)
    data = ConcatDataset([TensorDataset(part) for part in parts])
    batches = worker.batches(data, batch_size=batch // worker.size, epochs=EPOCHS, drop_last=drop)
    for (ids,) in batches:
        note(folder / "ids", ids)
        model(ids).mean().backward()
        pace.step()
        if worker.first and batches.state_dict()["step"] == 0:
            torch.save(model.weight.detach(), folder / f"epoch-{batches.state_dict()['epoch']}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), "drop" in sys.argv)
