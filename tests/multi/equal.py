"""Run by every rank: the comm laws, then training against one process; rank 0 writes what it found.

paceline run -np 3 --comm shm -- python tests/multi/equal.py OUT.json
"""

import json
import sys
from functools import lru_cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

import paceline
from paceline.workload.resolve import build
from tests.laws.comm_laws import LAWS
from tests.train import problems

TOLERANCES = {"momentum": (torch.float32, 1e-5), "sgd": (torch.float64, 1e-9), "adamw": (torch.float64, 1e-9)}
STEPS, SAMPLES = 20, 12
BERT = "bert_base(layers=2, hidden=32, vocabulary=97, dropout=0, sequence_length=16)"


def bert(dtype):
    return build(BERT).model.to(dtype)


def bert_batches(workload):
    for step in range(STEPS):
        yield workload.batch(torch.arange(step * SAMPLES, (step + 1) * SAMPLES))


def train_bert(optimizer, dtype, pace=None, share=slice(None), model=None):
    workload = build(BERT)
    for batch in bert_batches(workload):
        if pace is None:
            optimizer.zero_grad()
        workload.loss(model, tuple(part[share] for part in batch)).backward()
        (pace or optimizer).step()
    return problems.flat(model)


@lru_cache
def bert_alone(name):
    dtype, _ = TOLERANCES[name]
    model = bert(dtype)
    return train_bert(problems.OPTIMIZERS[name](model.parameters()), dtype, model=model)


@lru_cache
def mlp_alone(name):
    dtype, _ = TOLERANCES[name]
    return problems.alone(lambda: problems.mlp(dtype), lambda: problems.batches(dtype), name)


def compare_bert(worker, name, schedule):
    dtype, _ = TOLERANCES[name]
    expected = bert_alone(name)
    model = bert(dtype)
    optimizer = problems.OPTIMIZERS[name](model.parameters())
    pace = paceline.wrap(model, optimizer, schedule=schedule)
    share = SAMPLES // worker.size
    mine = slice(worker.rank * share, (worker.rank + 1) * share)
    return train_bert(optimizer, dtype, pace, mine, model), expected


def compare_mlp(worker, name, schedule, accumulate=1):
    dtype, _ = TOLERANCES[name]
    found = problems.together(
        worker.comm,
        lambda: problems.mlp(dtype),
        lambda: problems.batches(dtype),
        name,
        accumulate,
        schedule=schedule,
    )
    return found, mlp_alone(name)


def identical(worker, weights):
    rows = torch.zeros(worker.size, weights.numel(), dtype=weights.dtype)
    worker.comm.all_gather(weights, rows).wait()
    return all(torch.equal(row, weights) for row in rows)


def main(path):
    torch.set_num_threads(1)
    worker = paceline.join()
    for law in LAWS:
        law(worker.comm)
    found = {"comm": type(worker.comm).__name__, "laws": len(LAWS), "cases": []}
    for name, (_, tolerance) in TOLERANCES.items():
        for schedule in ("bsp", "wfbp", "fusion(mb=0.001)"):
            cases = {"mlp": lambda n=name, s=schedule: compare_mlp(worker, n, s)}
            cases["bert"] = lambda n=name, s=schedule: compare_bert(worker, n, s)
            if worker.size != 4:  # 24 samples among 4 ranks x 4 backwards do not divide
                cases["accumulate"] = lambda n=name, s=schedule: compare_mlp(worker, n, s, 4)
            for case, compare in cases.items():
                weights, expected = compare()
                error = float((weights - expected).abs().max())
                same = identical(worker, weights)
                found["cases"].append([case, name, schedule, error, tolerance, same])
    worker.close()
    if worker.first:
        Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
