"""Run by every rank: random one-sided calls in no common order, and now and then all mass is counted.

paceline run -np 4 --comm shm -- python tests/multi/mass.py OUT.json SEED locked|unlocked|put
"""

import contextlib
import json
import random
import sys
import time
from pathlib import Path

import torch

import paceline
from paceline.comm.shm.mutex import Lock

AUDITS, CALLS, NUMEL, PAUSE = 4, 60, 50_000, 2e-3


def without_locks():
    """The negative control: the same calls, and nobody keeps anybody out."""
    Lock.held = lambda self, what, deadline=None: contextlib.nullcontext(self.numbers)


def start_of(rank):
    """Half of x equals p on every rank, so that it must stay so; the other half differs."""
    x = torch.ones(NUMEL, dtype=torch.float64)
    x[NUMEL // 2 :] = rank + torch.rand(NUMEL // 2, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    return x


def one_call(win, dice, mode):
    """A random verb with random targets and weights, after a random pause; its handle, if it has one."""
    if mode != "unlocked":
        time.sleep(dice.choice([0, 0, dice.random() * PAUSE]))
    if dice.random() < 0.4:
        win.collect()
        return None
    targets = dice.sample(win.targets, dice.randint(1, len(win.targets)))
    weights = {target: dice.random() / (1 + len(win.targets)) for target in targets}
    if mode == "put":
        return win.put(dst_weights=weights, self_weight=1 - sum(weights.values()), wait=False)
    return win.accumulate(dst_weights=weights, wait=False)


def audit(worker, win, start):
    """How far the mass of x and p, with what lies in buffers, is from what it was; and from each other."""
    worker.comm.barrier()
    mine = torch.cat([win.x, torch.tensor([win.p], dtype=torch.float64)])
    for source in win.sources:
        win._buffers.fold(source, mine, clear=False)
    torn = float((mine[: NUMEL // 2] - mine[-1]).abs().max())
    total = paceline.allreduce(mine, average=False)
    worker.comm.barrier()
    return float(((total - start) / start).abs().max()), torn


def main(path, seed, mode):
    worker = paceline.join()
    if mode == "unlocked":
        without_locks()
    dice = random.Random(1000 * int(seed) + worker.rank)
    x = start_of(worker.rank)
    win = paceline.window(x, name="mass", topology="exp2")
    start = torch.cat([paceline.allreduce(x, average=False), torch.tensor([float(worker.size)], dtype=torch.float64)])
    found = []
    for _ in range(AUDITS):
        handles = [one_call(win, dice, mode) for _ in range(CALLS)]
        for handle in handles:
            if handle is not None:
                handle.wait()
        found.append(audit(worker, win, start))
    for _ in range(25):  # in step, so that the end does not depend on how ranks were scheduled: 3^-25 is left
        win.accumulate()
        worker.comm.barrier()
        win.collect()
        worker.comm.barrier()
    found.append(audit(worker, win, start))
    apart = (win.mean - start[:-1] / worker.size).abs().max().view(1)
    rows = paceline.allgather(torch.tensor([[[*row] for row in found] + [[float(apart), win.p]]]))
    win.free()
    worker.close()
    if worker.first:
        lost, torn = rows[:, :-1, 0], rows[:, :-1, 1]
        found = {"lost": float(lost.max()), "torn": float(torn.max()), "apart": float(rows[:, -1, 0].max())}
        Path(path).write_text(json.dumps({**found, "p": rows[:, -1, 1].tolist()}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
