"""Copy the parameters and the optimizer state of one rank to all ranks, in place.

    paceline.broadcast_parameters(model.state_dict(), root_rank=0)
    paceline.broadcast_optimizer_state(optimizer, root_rank=0)

`wrap` already broadcasts the parameters. A loop with `wrap` needs these calls only if one rank alone has loaded a
checkpoint.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from paceline.api.handle import into
from paceline.api.join import current
from paceline.errors import PacelineError, WrongCommand
from paceline.files.snapshot import Snapshot

Named = Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]


def broadcast_parameters(params: Named, root_rank: int = 0) -> None:
    """Copy the tensors of the root to all ranks, in place. `params` is a state_dict, or named_parameters().

    Ranks compare the number, names, shapes and dtypes of tensors, and raise if these differ.
    """
    comm = current().comm
    named = list(params.items() if isinstance(params, Mapping) else params)
    wrong = next((name for name, tensor in named if not isinstance(tensor, Tensor)), None)
    if wrong is not None:
        raise WrongCommand(f"broadcast_parameters of {wrong!r}", why="it is not a tensor", remedy="tensors only")
    counts = torch.zeros(comm.size, 1, dtype=torch.int64)
    comm.all_gather(torch.tensor([len(named)]), counts, "number of parameters").wait()
    if counts.min() != counts.max():
        raise WrongCommand(
            "broadcast_parameters",
            why=f"ranks pass {counts.view(-1).tolist()} tensors",
            remedy="the same model on all ranks",
        )
    copies = [tensor.detach().clone(memory_format=torch.contiguous_format) for _, tensor in named]
    works = [
        comm.broadcast(copy, root_rank, f"parameter {name} {list(copy.shape)}")
        for (name, _), copy in zip(named, copies, strict=True)
    ]
    for work in works:
        work.wait()
    for (_, tensor), copy in zip(named, copies, strict=True):
        into(tensor)(copy)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Load the root's optimizer state on all ranks: parameter groups with settings, and the state of parameters.

    The other ranks need not have any state yet. Nothing is pickled: a state may hold tensors, numbers, texts, lists,
    tuples and dicts.
    """
    comm, payload, problem = current().comm, b"", ""
    if comm.rank == root_rank:
        stream = io.BytesIO()
        try:
            Snapshot(_on_cpu(optimizer.state_dict())).write(stream)
            payload = stream.getvalue()
        except PacelineError as error:  # all ranks must raise it, so that none waits
            payload, problem = str(error).encode(), str(error)
    head = torch.tensor([len(payload), int(bool(problem))])
    comm.broadcast(head, root_rank, "size of the optimizer state").wait()
    data = torch.empty(int(head[0]), dtype=torch.uint8)
    if payload:
        data.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
    comm.broadcast(data, root_rank, "optimizer state").wait()
    raw = data.numpy().tobytes()
    if int(head[1]):
        raise WrongCommand("broadcast_optimizer_state", why=raw.decode())
    if comm.rank != root_rank:
        optimizer.load_state_dict(Snapshot.read(io.BytesIO(raw), len(raw)).state)


def _on_cpu(value: Any) -> Any:
    """Return the state with all tensors on the CPU. load_state_dict moves them to the device of their parameters."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, Mapping):
        return {key: _on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_cpu(item) for item in value)
    return value
