"""Average consensus: every rank starts with a number and mixes with its neighbors until all hold the mean.

paceline run -np 8 -- python examples/consensus.py --topology "one_peer(exp2)" --steps 3
"""

import argparse
import json
import sys
from pathlib import Path

import torch

import paceline


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", default="exp2")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--start", default="rank", help="rank, or one number per rank: 1,2,3,4")
    parser.add_argument("--phase", type=int, default=0, help="step to start from, for topologies that change")
    parser.add_argument("--uniform", action="store_true", help="equal weights 1/(neighbors + 1)")
    parser.add_argument("--push-sum", action="store_true", help="for directed and irregular graphs")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main():
    asked = arguments()
    worker = paceline.join()
    topology = f"{asked.topology}(uniform=true)" if asked.uniform else asked.topology
    starts = range(worker.size) if asked.start == "rank" else list(map(float, asked.start.split(",")))
    x = torch.tensor([float(starts[worker.rank])], dtype=torch.float64)
    mass = torch.ones(1, dtype=torch.float64)
    history = [paceline.allgather(x).view(-1).tolist()]
    for step in range(asked.phase, asked.phase + asked.steps):
        both = torch.cat([x, mass])
        x, mass = paceline.neighbor_allreduce(both, topology=topology, step=step, push=asked.push_sum).split(1)
        history.append(paceline.allgather(x / mass).view(-1).tolist())
    if worker.first:
        print(f"values after {asked.steps} step(s): {history[-1]}")
        if asked.json:
            asked.json.write_text(json.dumps({"values": history[-1], "history": history}))


if __name__ == "__main__":
    try:
        main()
    except paceline.PacelineError as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
