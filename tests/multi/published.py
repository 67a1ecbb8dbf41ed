"""Run by every rank of a test: all checks of tests/api/published.py over one comm.

RANK=r WORLD_SIZE=4 PACELINE_STORE=FOLDER python tests/multi/published.py COMM
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

import paceline
from paceline.comm import connect
from tests.api.published import NODES
from tests.api.published_windows import CHECKS


def main(comm):
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if comm == "node":  # shared memory inside a host, and these are two hosts
        connect.host_identity = lambda: f"host {NODES[rank]}"
    worker = paceline.join(comm=comm, deadline=120)
    worker.comm.placement = NODES
    for check in dict.fromkeys(CHECKS.values()):
        check(rank)
        print(check.__name__, flush=True)
    worker.comm.barrier()
    worker.close()


if __name__ == "__main__":
    main(sys.argv[1])
