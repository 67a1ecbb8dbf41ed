"""Two ranks that make different calls: see test_apart.py. A result is a wrong one, but for `models`."""

import sys

import torch

import paceline

CASE = sys.argv[1]
worker = paceline.join(deadline=8)
other = worker.rank == 1


def training(steps, skips=(), extra=()):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    for step in range(steps):
        if other and step in skips:
            continue
        model(torch.ones(2, 4)).sum().backward()
        pace.step()
        if not other and step in extra:
            paceline.allreduce(torch.ones(1))
    return "trained"


def backward_of(model, factor):
    (factor * sum(parameter.sum() for parameter in model.parameters())).backward()


def two_models():
    """Models of equal length, with their backward passes in another order on one rank."""
    models = torch.nn.Linear(3, 4), torch.nn.Linear(7, 2)
    paces = [paceline.wrap(model, torch.optim.SGD(model.parameters(), 1.0)) for model in models]
    passes = list(zip(models, (1.0, 100.0), strict=True))
    before = [parameter.detach().clone() for model in models for parameter in model.parameters()]
    for model, factor in reversed(passes) if other else passes:
        backward_of(model, factor)
    for pace in reversed(paces) if other else paces:
        pace.step()
    after = [parameter.detach() for model in models for parameter in model.parameters()]
    moved = [(old - new).mean().item() for old, new in zip(before, after, strict=True)]
    return [round(value, 3) for value in moved]


def wrapped_in_another_order():
    models = torch.nn.Linear(3, 4, bias=False), torch.nn.Linear(4, 3, bias=False)
    for model in reversed(models) if other else models:
        paceline.wrap(model, torch.optim.SGD(model.parameters(), 1.0))
    return "wrapped"


def averaged_on_one_rank():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    for _ in range(2):
        model(torch.randn(4, 4)).sum().backward()
        pace.step()
        if not other:
            with pace.averaged():
                pass
    return "trained"


works = {
    "models": two_models,
    "wrap": wrapped_in_another_order,
    "averaged": averaged_on_one_rank,
    "neighbors": lambda: paceline.neighbor_allreduce(torch.ones(4), topology="one_peer(exp2)", step=worker.rank),
    "exit": lambda: sys.exit(3) if other else paceline.allreduce(torch.ones(4)),
    "verb": lambda: paceline.allgather(torch.ones(4)) if other else paceline.allreduce(torch.ones(4)),
    "dtype": lambda: paceline.allreduce(torch.ones(4 if other else 8, dtype=torch.float64 if other else torch.float32)),
    "extra": lambda: training(4, extra=(1,)),
    "skipped": lambda: training(4, skips=(1,)),
}
value = works[CASE]()
print("a result", value, flush=True)
worker.close()
