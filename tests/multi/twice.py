"""Run by every rank: joins, trains a step, leaves, and does all of it again.

paceline run -np 2 -- python tests/multi/twice.py
"""

import torch

import paceline


def once(seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 1)
    with paceline.join() as worker:
        pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.full((2, 3), float(worker.rank))).sum().backward()
        pace.step()
        same = paceline.allgather(model.weight.detach())
        assert torch.equal(same[0], same[1])
        return worker.first


if __name__ == "__main__":
    for seed in range(3):
        first = once(seed)
    if first:
        print("joined three times", flush=True)
