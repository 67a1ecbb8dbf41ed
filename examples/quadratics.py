"""Every rank has its own parabola h (x - c)^2 / 2; together they look for the minimum of the sum.

paceline run -np 4 -- python examples/quadratics.py --rule exact_diffusion --topology ring --lr 0.1 --steps 500
"""

import argparse
import json
import sys
from pathlib import Path

import torch

import paceline


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule", default="grad")
    parser.add_argument("--topology", help="of the neighbors; rule grad takes none")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--h", default="", help="curvatures, one per rank: 1,2,3,4")
    parser.add_argument("--c", default="", help="minima, one per rank")
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--nesterov", action="store_true")
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main():
    asked = arguments()
    worker = paceline.join()
    numbers = [list(map(float, text.split(","))) if text else None for text in (asked.h, asked.c)]
    h, c = ((given or range(1, worker.size + 1))[worker.rank] for given in numbers)
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(
        model.parameters(), asked.lr, asked.momentum, weight_decay=asked.weight_decay, nesterov=asked.nesterov
    )
    exchange = f"neighbor({asked.topology})" if asked.topology else "allreduce"
    pace = paceline.wrap(model, optimizer, rule=asked.rule, exchange=exchange)
    for _ in range(asked.steps):
        (h * (model.weight - c) ** 2 / 2).sum().backward()
        pace.step()
    values = paceline.allgather(model.weight.detach().view(1)).view(-1).tolist()
    if worker.first:
        print(f"values after {asked.steps} step(s): {values}")
        if asked.json:
            asked.json.write_text(json.dumps({"values": values}))


if __name__ == "__main__":
    try:
        main()
    except paceline.PacelineError as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
