"""Run by every rank: a loop as people write it for DDP, with join and wrap added; rank 0 writes what it saw.

paceline run -np 3 --comm shm -- python tests/multi/contract.py OUT.json
torchrun --nproc-per-node 2 tests/multi/contract.py OUT.json
"""

import contextlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch import nn

import paceline
from tests.train.problems import batches, flat, loss_of, mlp

STEPS, MICRO = 8, 2
WRITES = {
    "mul_": lambda p: p.grad.mul_(1e6),
    "data": lambda p: p.grad.data.fill_(1e6),
    "numpy": lambda p: p.grad.numpy().fill(1e6),
    "zero_grad": lambda p: p.grad.zero_(),
}


def loop(model, share, sync=lambda: None, no_sync=contextlib.nullcontext):
    """AdamW with two groups, accumulation, clipping after backward, a scheduler: nothing here knows of paceline."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0}])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    sync(model, optimizer)
    for x, y in batches(torch.float64, steps=STEPS):
        for micro in range(MICRO):
            part = slice(micro * len(x) // MICRO, (micro + 1) * len(x) // MICRO)
            with no_sync() if micro + 1 < MICRO else contextlib.nullcontext():
                (loss_of(model, *share(x[part], y[part])) / MICRO).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
    return flat(model)


def compare(worker):
    pace = []
    share = lambda *parts: [part[worker.rank :: worker.size] for part in parts]  # noqa: E731
    weights = loop(
        mlp(torch.float64),
        share,
        lambda model, optimizer: pace.append(paceline.wrap(model, optimizer)),
        lambda: pace[0].no_sync(),
    )
    pace[0].close()
    return float((weights - loop(mlp(torch.float64), lambda *parts: parts, lambda *_: None)).abs().max())


def writes(worker):
    """The largest error of a mean gradient on any rank while rank 1 writes into its gradients after every backward."""
    worst = 0.0
    for write in WRITES.values():
        model = mlp(torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pace = paceline.wrap(model, optimizer)
        for x, y in batches(torch.float64, steps=5):
            optimizer.zero_grad(set_to_none=False)
            loss_of(model, x[worker.rank :: worker.size], y[worker.rank :: worker.size]).backward()
            expected = mlp(torch.float64)
            loss_of(expected, x, y).backward()
            for again in range(2):
                for own, mean in zip(model.parameters(), expected.parameters(), strict=True):
                    if not (again and worker.rank == 1):
                        worst = max(worst, float((own.grad - mean.grad).abs().max()))
                worker.comm.barrier()
                if worker.rank == 1 and not again:
                    for parameter in model.parameters():
                        write(parameter)
                worker.comm.barrier()
        pace.close()
    return worst


def scaled(model, optimizer, worker, dtype):
    """A loop with autocast and GradScaler that overflows once, on one rank; the scale is large at first."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=100)
    for step, (x, y) in enumerate(batches(steps=STEPS)):
        x, y = x[worker.rank :: worker.size], y[worker.rank :: worker.size]
        with torch.autocast("cpu", dtype=dtype):
            loss = loss_of(model, x, y)
        if step == 2 and worker.rank == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return scaler.get_scale()


def against_ddp(worker, dtype):
    """The largest difference of the weights from DDP's, and both scales."""
    ours, theirs = mlp(), mlp()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs)]
    pace = paceline.wrap(ours, optimizers[0])
    scales = [scaled(ours, optimizers[0], worker, dtype)]
    pace.close()
    wrapped = nn.parallel.DistributedDataParallel(theirs)
    scales.append(scaled(wrapped, optimizers[1], worker, dtype))
    return float((flat(ours) - flat(theirs)).abs().max()), scales


def main(path):
    torch.set_num_threads(1)
    worker = paceline.join()
    seen = {"comm": type(worker.comm).__name__, "size": worker.size, "error": compare(worker), "writes": writes(worker)}
    if torch.distributed.is_initialized():
        seen["scaler"] = [against_ddp(worker, dtype) for dtype in (torch.bfloat16, torch.float16)]
    worker.close()
    if worker.rank == worker.size - 1:
        Path(path).write_text(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
