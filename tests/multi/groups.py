"""Run by every rank: torch's own process group beside join(). The mode says who makes it, and when."""

import sys

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

import paceline

mode = sys.argv[1]
if mode == "before":
    dist.init_process_group("gloo")
worker = paceline.join(process_group=mode == "join")
if mode == "after":
    dist.init_process_group("gloo")
assert type(worker.comm).__name__ == "ShmComm"
model = torch.nn.Linear(1, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
paceline.wrap(model, optimizer)
mine = list(DistributedSampler(range(8), shuffle=False))
total = torch.tensor([float(sum(mine))])
dist.all_reduce(total)
before = float(model.weight)
model(torch.full((1, 1), 1.0 + worker.rank)).sum().backward()
optimizer.step()
if worker.first:
    print("seen", int(total), round(before - float(model.weight), 6))
worker.close()
if mode != "join":
    dist.barrier()  # the script's own group outlives the job
    dist.destroy_process_group()
assert not dist.is_initialized()
