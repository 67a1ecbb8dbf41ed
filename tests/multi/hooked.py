"""Run by every rank: stock DDP with our compressors as comm hooks; rank 0 writes what it found.

paceline run -np 2 -- python tests/multi/hooked.py OUT.json
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import paceline
from tests.train import problems

STEPS = 12
TEXTS = (
    "none",
    "cast",
    "sign",
    "feedback(topk(ratio=0.2))",
    "feedback(gtopk(ratio=0.2))",
    "feedback(powersgd(rank=1))",
)


def train(rank, text):
    """Losses, weights and the parameters that this rank keeps something of; None is DDP without a hook."""
    model = problems.mlp()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.0005, gradient_as_bucket_view=True)
    if text is not None:
        state, hook = paceline.comm_hook(text, model)
        ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001 if text == "sign" else 0.2)
    losses = []
    for x, y in problems.batches(steps=STEPS):
        share = slice(rank * 12, rank * 12 + 12)
        optimizer.zero_grad()
        loss = problems.loss_of(ddp, x[share], y[share] % 2)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, problems.flat(model), sorted(state.state().get("memory", {})) if text else []


def bad_gradient(rank):
    """What the hook says of a NaN; every rank must fail, or the others would wait for it."""
    model = problems.mlp()
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(*paceline.comm_hook("sign", model))
    x = torch.full((2, 8), float("nan"))
    try:
        ddp(x).sum().backward()
    except Exception as problem:
        return str(problem)
    return "nothing"


def main(path):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(f"{os.environ['PACELINE_JOB']}/meeting", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    found = {}
    expected = train(rank, None)[1]
    for text in TEXTS:
        losses, weights, kept = train(rank, text)
        rows = [torch.zeros_like(weights) for _ in range(size)]
        dist.all_gather(rows, weights)
        same = all(torch.equal(row, weights) for row in rows)
        found[text] = {"losses": losses, "same": same, "kept": kept, "apart": float((weights - expected).abs().max())}
    found["nan"] = bad_gradient(rank)
    if rank == 0:
        Path(path).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
