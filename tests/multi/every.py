"""Run by every rank: strategies train small_cnn one after another; rank 0 writes what became of each.

paceline run -np 8 -- python tests/multi/every.py OUT.json NODES STRATEGY ...
"""

import json
import sys
from pathlib import Path

import torch

import paceline
from paceline.measure.meter import Meter
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.build import training_of
from paceline.train.evaluate import replicas


def trained(comm, nodes, strategy):
    """The mean loss of every step, and how far apart the replicas are."""
    rate = 0.001 if strategy in ("signsgd", "signum") else 0.05  # a step of a sign is the learning rate itself
    network = {"model": "small_cnn", "batch_size": 8, "optimizer": f"sgd(lr={rate})"}
    run = Run(workers=comm.size, nodes=nodes, strategy=strategy, **network)
    comm.placement = run.cluster.nodes
    training = training_of(compose(run), comm)
    training.steps(30, Meter())
    training.settle()
    share = torch.tensor(training.losses) / comm.size
    mean = torch.empty_like(share)
    comm.all_sum(share, mean, "losses").wait()
    found = {"loss": mean.tolist(), "replicas": replicas(training.pace.model, comm)}
    training.pace.close()
    return found


def main(path, nodes, *strategies):
    torch.set_num_threads(1)
    worker = paceline.join()
    found = {strategy: trained(worker.comm, nodes, strategy) for strategy in strategies}
    worker.close()
    if worker.first:
        Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
