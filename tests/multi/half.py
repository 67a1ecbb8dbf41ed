"""Run by every rank: equal models in half precision are averaged again and again; a rank whose model changes fails.

paceline run -np 3 --comm shm -- python tests/multi/half.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

import paceline
from tests.train.test_half_precision import DTYPES, Vector, values

CASES = {
    "atc": ("neighbor(full)", "hierarchical", "window(ring)"),
    "awc": ("allreduce", "neighbor(star)"),
    "push_sum": ("neighbor(one_way_ring)",),
    "diloco(every=2)": ("ps",),
}
STEPS = 12


def main():
    torch.set_num_threads(1)
    worker = paceline.join()
    for rule, exchange, dtype in [(r, e, d) for r, exchanges in CASES.items() for e in exchanges for d in DTYPES]:
        model = Vector(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        pace = paceline.wrap(model, optimizer, rule=rule, exchange=exchange, schedule="bsp")
        for _ in range(STEPS):
            ((model.weight * 0).sum() + (model.bias * 0).sum()).backward()
            pace.step()
        worker.comm.barrier()
        pace.close()
        assert torch.equal(model.weight.detach(), values(dtype)), (rule, exchange, dtype)
    worker.close()


if __name__ == "__main__":
    main()
