"""A rank that opens a file under every low descriptor, then has a second process join the job: see test_late.py.

The training code stands without a main guard, as people write it.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import paceline

PRECIOUS = Path(os.environ["PRECIOUS"])
MODE = sys.argv[1]
AGAIN = "import paceline\nwith paceline.join(): pass\nprint('joined as well')"


def second():
    """What a second process of this rank prints when it joins."""
    done = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, timeout=60)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


def forked(work):
    pid = os.fork()
    if not pid:
        work()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def join_here():
    try:
        paceline.join()
    except paceline.PacelineError as problem:
        print(problem, flush=True)
        sys.exit(3)


def backward_here():
    try:
        (model.weight.sum() * 1000).backward()
    except paceline.PacelineError:
        os._exit(5)


def sum_here():
    try:
        paceline.allreduce(torch.full((1,), 1000.0))
    except paceline.PacelineError as problem:
        print(problem, flush=True)
        os._exit(4)


worker = paceline.join()
model = torch.nn.Linear(4, 4, bias=False)
pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), schedule="wfbp")
files = [PRECIOUS.open("rb") for _ in range(64)]
assert paceline.allreduce(torch.ones(1)).item() == 1
if worker.rank == 1 or MODE == "everywhere":
    if MODE in ("subprocess", "everywhere"):
        print("second:", second())
    elif MODE == "fork":
        print("codes:", forked(lambda: sys.exit(0)), forked(join_here), forked(sum_here), forked(backward_here))
    else:
        loader = DataLoader(list(range(8)), num_workers=1, multiprocessing_context=MODE.removesuffix("-loader"))
        try:
            print("batches:", sum(1 for _ in loader))
        except RuntimeError as problem:
            print("loader:", str(problem).splitlines()[0])
assert paceline.allreduce(torch.ones(1)).item() == 1
before = model.weight.detach().clone()
model.weight.sum().backward()
pace.step()
assert torch.allclose(before - model.weight.detach(), torch.ones(4, 4), atol=1e-5), (
    "gradients of the parent are untouched"
)
print(f"rank {worker.rank} is done")
