"""The entry point of a rank of `paceline net`: python -m paceline.measure.net.worker SPEC OUT

Rank 0 writes the rows and pairs as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path


def main(spec_text: str, out: str) -> None:
    import torch

    from paceline.comm.connect import connect
    from paceline.comm.position import position
    from paceline.measure.net.sweep import pairs, sweep

    torch.set_num_threads(1)
    spec = json.loads(spec_text)
    comm = connect(position(os.environ), spec["comm"], spec["deadline"], buffer=spec["buffer"])
    failure = "failed"
    try:
        results = {
            "rows": [asdict(row) for row in sweep(comm, spec["comm"], spec["verbs"], spec["sizes"], time.perf_counter)],
            "pairs": [asdict(pair) for pair in pairs(comm, time.perf_counter)] if spec["pairs"] else [],
            "placement": list(comm.placement),
        }
        if comm.rank == 0:
            Path(out).write_text(json.dumps(results))
        failure = ""
    finally:
        comm.close(failure)


if __name__ == "__main__":
    main(*sys.argv[1:])
