"""A script for `paceline chaos`: a weight per sample grows by one with every use, and must end as the number of epochs.

paceline chaos --minutes 10 --membership 'elastic(max=6, deterministic=true)' -- python tests/elastic/counting.py 1800
"""

import os
import sys
import time

import torch
from torch import nn

import paceline

SAMPLES, EPOCHS = 103, int(sys.argv[1])  # a prime number; the global batch of 4 workers is 12, which does not divide it


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index, torch.full((4,), (index % 13) / 13, dtype=torch.float64)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)).double()


worker = paceline.join()
torch.manual_seed(7)
model = Counting()
groups = [{"params": [model.counts], "lr": 1.0}, {"params": model.net.parameters(), "lr": 0.01, "momentum": 0.9}]
pace = paceline.wrap(model, torch.optim.SGD(groups))
total = 3 * int(os.environ["WORLD_SIZE"])
steps = -(-SAMPLES // total)
for ids, x in worker.batches(Numbers(), batch_size=3, epochs=EPOCHS):
    batch = min(total, SAMPLES - pace.steps % steps * total)
    scale = batch / len(ids) if pace.weight else 0.0
    (-scale * model.counts[ids].sum() + model.net(x).pow(2).mean()).backward()
    time.sleep(0.01)
    if pace.step() and pace.steps % steps == 0:
        wrong = (model.counts - pace.steps // steps).abs().max().item()
        assert wrong < 1e-6, f"a sample was lost or repeated in epoch {pace.steps // steps}: off by {wrong}"
print("every sample counted", EPOCHS, "times")
