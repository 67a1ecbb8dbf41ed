"""Collectives among all ranks, as library calls on any tensor. They block; with wait=False they return a handle.

Autograd does not record them: a result has no gradient history, even if x has one. Half-precision sums are sent and
added in float32 and rounded once. A function whose name ends with an underscore writes the result into x and returns
x.

worker = paceline.join()
mean = paceline.allreduce(x)
rows = paceline.allgather(x)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paceline.api.handle import Handle, into, result_of
from paceline.api.join import Worker, current
from paceline.comm.sums import wide
from paceline.errors import WrongCommand
from paceline.strategy.exchanges.hierarchical import members
from paceline.types import Cluster

Finish = Callable[[Tensor], Tensor] | None


def allreduce(x: Tensor, *, average: bool = True, is_hierarchical_local: bool = False, wait: bool = True) -> Any:
    """Return the mean over ranks, or with average=False the sum. Integer tensors can only be summed.

    With `is_hierarchical_local`, only the ranks of this rank's node take part.
    """
    return _allreduce(x, average, is_hierarchical_local, wait, None)


def allreduce_(x: Tensor, *, average: bool = True, is_hierarchical_local: bool = False, wait: bool = True) -> Any:
    """Call allreduce and write the result into x. Return x."""
    return _allreduce(x, average, is_hierarchical_local, wait, into(x))


def broadcast(x: Tensor, root: int = 0, *, wait: bool = True) -> Any:
    """Return the root's tensor on every rank; x itself is not modified."""
    return _broadcast(x, root, wait, None)


def broadcast_(x: Tensor, root: int = 0, *, wait: bool = True) -> Any:
    """Write the root's tensor into x on every rank."""
    return _broadcast(x, root, wait, into(x))


def allgather(x: Tensor, *, wait: bool = True) -> Any:
    """Return every rank's tensor, joined along the first dimension in rank order.

    The first dimension may differ from rank to rank. Zero-dimensional tensors are joined into a vector.
    """
    comm, x = current().comm, x.detach()
    rows = x.reshape(1) if x.dim() == 0 else x.contiguous()
    counts = gather_counts(comm, rows, "allgather").view(-1).tolist()
    longest = max(counts)
    out = x.new_empty((comm.size, longest, *rows.shape[1:]))
    work = comm.all_gather(padded_to(rows, longest), out, "allgather")
    return result_of(Handle(work, out, finish=lambda stacked: _joined(stacked, counts)), wait)


def gather_counts(comm: Any, rows: Tensor, name: str, *more: int) -> Tensor:
    """Return a table with a line per rank: its number of rows, then `more`. Rows must agree in shape and dtype."""
    mine = torch.tensor([rows.shape[0], *more])
    table = torch.zeros(comm.size, mine.numel(), dtype=torch.int64)
    dtype = str(rows.dtype).removeprefix("torch.")
    comm.all_gather(mine, table, f"{name}: rows of {list(rows.shape[1:])} {dtype}").wait()
    return table


def padded_to(rows: Tensor, count: int) -> Tensor:
    """Return `rows`, padded with zeros to `count` rows."""
    if rows.shape[0] == count:
        return rows
    padded = rows.new_zeros((count, *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    return padded


def _joined(stacked: Tensor, counts: list[int]) -> Tensor:
    if min(counts) == max(counts):
        return stacked.flatten(0, 1)
    return torch.cat([part[:count] for part, count in zip(stacked, counts, strict=True)])


def _allreduce(x: Tensor, average: bool, local: bool, wait: bool, finish: Finish) -> Any:
    comm = _node_comm(current()) if local else current().comm
    if average and not (x.is_floating_point() or x.is_complex()):
        raise WrongCommand(f"allreduce of {x.dtype}", why="whole numbers have no mean", remedy="average=False")
    whole = x.detach().to(wide(x.dtype))
    src = (whole / comm.size if average else whole).contiguous()
    out = torch.empty_like(src)
    name = "allreduce inside a node" if local else "allreduce"
    key = shaped(name if average else f"{name}, average=False", x)
    return result_of(Handle(comm.all_sum(src, out, key), out, x.dtype, finish=finish), wait)


def _broadcast(x: Tensor, root: int, wait: bool, finish: Finish) -> Any:
    comm, out = current().comm, x.detach().clone(memory_format=torch.contiguous_format)
    return result_of(Handle(comm.broadcast(out, root, shaped("broadcast", x)), out, finish=finish), wait)


def shaped(name: str, x: Tensor) -> str:
    """Return what ranks compare besides length and dtype. Tensors of one length may differ in shape."""
    return f"{name} {list(x.shape)}" if x.dim() > 1 else name


def _node_comm(worker: Worker) -> Any:
    """Return the comm among the ranks of this rank's node. The first call is collective."""
    comm = worker.comm
    if worker.inside is None:
        worker.inside = comm.split(members(Cluster(comm.placement or (0,) * comm.size)))
    return worker.inside
