"""Small problems for training tests: a model maker and batches that can be split among ranks."""

import copy

import torch

from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.pace import Pace

STEPS = 20


def build(maker, seed=0):
    """Build a model from a seed, once per process, because ranks that are threads share torch's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return maker()


MLPS = [
    build(lambda: torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)), seed)
    for seed in range(3)
]


def mlp(dtype=torch.float32, seed=0):
    return copy.deepcopy(MLPS[seed]).to(dtype)


def batches(dtype=torch.float32, samples=24, steps=STEPS):
    dice = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(samples, 8, generator=dice).to(dtype)
        yield x, torch.randint(0, 4, (samples,), generator=dice)


def loss_of(model, x, y):
    return torch.nn.functional.cross_entropy(model(x), y)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def flat(model):
    return torch.cat([p.detach().reshape(-1).double() for p in model.parameters()])


def alone(make, data, optimizer="momentum"):
    """Train in one process on the concatenated batch."""
    model = make()
    step = OPTIMIZERS[optimizer](model.parameters())
    for x, y in data():
        step.zero_grad()
        loss_of(model, x, y).backward()
        step.step()
    return flat(model)


def together(comm, make, data, optimizer="momentum", accumulate=1, **axes):
    """Train on this rank's share of every batch."""
    model = make()
    pace = Pace(
        model,
        OPTIMIZERS[optimizer](model.parameters()),
        comm=comm,
        axes=compose(Run(workers=comm.size, accumulate=accumulate, **axes)).axes,
        accumulate=accumulate,
    )
    for x, y in data():
        share = len(x) // (comm.size * accumulate)
        for micro in range(accumulate):
            first = (comm.rank * accumulate + micro) * share
            loss_of(model, x[first : first + share], y[first : first + share]).backward()
            committed = pace.step()
        assert committed
    pace.finish()
    return flat(model)
