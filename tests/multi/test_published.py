"""The expectations of users of the published decentralized library, in processes over every comm of CPU tensors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.published_windows import CHECKS, SIZE

SCRIPT = Path(__file__).with_name("published.py")


@pytest.mark.multi
@pytest.mark.slow
@pytest.mark.parametrize("comm", ["shm", "tcp", "gloo", "node"])
def test_every_operation_has_its_published_value(comm, tmp_path):
    environ = {**os.environ, "WORLD_SIZE": str(SIZE), "PACELINE_STORE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environ["GLOO_SOCKET_IFNAME"] = "lo"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), comm],
            env={**environ, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(SIZE)
    ]
    try:
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * SIZE, "\n".join(outputs)
    names = [check.__name__ for check in dict.fromkeys(CHECKS.values())]
    assert [output.split()[-len(names) :] for output in outputs] == [names] * SIZE
