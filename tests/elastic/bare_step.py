"""Run by every worker of an elastic job: a loop that uses p.grad and steps the optimizer itself, as with DDP.

paceline run -np 2 --membership elastic -- python tests/elastic/bare_step.py OUT
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline
from paceline.errors import WorkloadError


def refusal(use):
    try:
        use()
    except WorkloadError as problem:
        return str(problem)
    return ""


def main(folder):
    worker = paceline.join()
    torch.manual_seed(3)
    model = nn.Linear(4, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pace = paceline.wrap(model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    points = torch.randn(48, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    uses = {
        "clip": lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-9),
        "norm": lambda: model.weight.grad.norm(),
        "step": optimizer.step,
    }
    refused = []
    for (x,) in worker.batches(TensorDataset(points), batch_size=8, epochs=2):
        for part in (x, 2 * x):  # two backwards add up
            (model(part).mean() / 2).backward()
        refused += [(name, refusal(use)) for name, use in uses.items()]
        if pace.step():
            scheduler.step()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    seen = {"refused": refused, "weights": weights, "steps": pace.steps, "lr": scheduler.get_last_lr()[0]}
    Path(folder, f"{worker.rank}.json").write_text(json.dumps(seen))
    worker.close()
    pace.close()
    assert refusal(optimizer.step) == "", "after close the optimizer is the user's own"


if __name__ == "__main__":
    main(sys.argv[1])
