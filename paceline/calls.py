"""Collectives as library calls on any tensor: blocking, or with wait=False a handle whose wait() gives the result.

Autograd does not see them: a result has no history, whatever x has.

worker = paceline.join()
mean = paceline.allreduce(x)
y = paceline.neighbor_allreduce(x, topology="one_peer(exp2)", step=t)
y = paceline.neighbor_allreduce(x, self_weight=0.5, src_weights={1: 0.5}, dst_weights={3: 1.0})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline import topologies
from paceline.errors import WrongCommand
from paceline.exchanges.hierarchical import Hierarchical
from paceline.exchanges.neighbor import plain_row, split_mass
from paceline.joining import current
from paceline.protocols import Channel
from paceline.transport import Work
from paceline.types import Chunk, Cluster, Lane, Mixing, Unit, View

_LANE = Lane("tensor", needs_consensus=False, lossy_ok=False)


class Handle:
    """A call under way."""

    def __init__(self, work: Work, result: Tensor) -> None:
        self._work, self._result = work, result

    def wait(self, deadline: float | None = None) -> Tensor:
        self._work.wait(deadline)
        return self._result

    def done(self) -> bool:
        return self._work.done()


def allreduce(x: Tensor, *, average: bool = True, wait: bool = True) -> Any:
    """The mean, or the sum, of every rank's tensor; a tensor of whole numbers can only be summed."""
    comm = current().comm
    if average and not (x.is_floating_point() or x.is_complex()):
        raise WrongCommand(f"allreduce of {x.dtype}", why="whole numbers have no mean", remedy="average=False")
    x = x.detach()
    src = (x / comm.size if average else x).contiguous()
    out = torch.empty_like(src)
    return _give(Handle(comm.all_sum(src, out, "allreduce"), out), wait)


def broadcast(x: Tensor, root: int = 0, *, wait: bool = True) -> Any:
    """The root's tensor on every rank; x itself is not written."""
    out = x.detach().clone()
    return _give(Handle(current().comm.broadcast(out, root, "broadcast"), out), wait)


def allgather(x: Tensor, *, wait: bool = True) -> Any:
    """Every rank's tensor, stacked in rank order."""
    comm = current().comm
    out = x.new_empty((comm.size, *x.shape))
    return _give(Handle(comm.all_gather(x.detach().contiguous(), out, "allgather"), out), wait)


def neighbor_allreduce(
    x: Tensor,
    *,
    topology: str | Any = "exp2",
    step: int = 0,
    self_weight: float | None = None,
    src_weights: Mapping[int, float] | None = None,
    dst_weights: Mapping[int, float] | None = None,
    push: bool = False,
    wait: bool = True,
) -> Any:
    """y = self_weight x + sum_j src_weights[j] dst_weights_of_j[me] x_j, or the weights of a topology at a step.

    With weights given, edges need not be those of any graph; who sends and who listens is compared among all ranks
    first, and a mismatch raises on all of them. `push` takes weights whose columns sum to one, for push-sum.
    """
    comm = current().comm
    if not (x.is_floating_point() or x.is_complex()):
        raise WrongCommand(f"neighbor_allreduce of {x.dtype}", why="weights are fractions", remedy="x.float()")
    if src_weights is not None or dst_weights is not None or self_weight is not None:
        row = _agree(comm, self_weight, src_weights, dst_weights)
    else:
        row = _row_of(comm, topology, step, push)
    src = x.detach().contiguous()
    out = torch.empty_like(src)
    return _give(Handle(comm.mix(src, out, row, "neighbor_allreduce"), out), wait)


def hierarchical_neighbor_allreduce(
    x: Tensor, *, topology: str = "one_peer(exp2)", step: int = 0, wait: bool = True
) -> Any:
    """The mean inside the node, neighbors between nodes; all ranks of a node get the same bits.

    Calls with one topology share their memory: one that is still under way ends before the next begins.
    """
    worker = current()
    comm = worker.comm
    if topology not in worker.levels:
        worker.levels[topology] = _levels(comm, topology), None
    channel, before = worker.levels[topology]
    if before is not None:
        before.wait()
    flat = x.detach().contiguous().view(-1)
    out = torch.empty_like(flat)
    work = channel.start(Unit(step, 0), Chunk(0, 0, flat.numel()), flat, out, None)
    worker.levels[topology] = channel, work
    return _give(Handle(work, out.view(x.shape)), wait)


def _levels(comm: Any, topology: str) -> Channel:
    exchange, view = Hierarchical(f"neighbor({topology})"), View(comm.rank, comm.size, comm.placement)
    count = len(set(comm.placement)) or 1
    exchange.check(Cluster(view.nodes or (0,) * view.size))
    _refuse_biased(exchange.topology, count, count)
    return exchange.join(comm, view, _LANE)


def _give(handle: Handle, wait: bool) -> Any:
    return handle.wait() if wait else handle


def _row_of(comm: Any, topology: str | Any, step: int, push: bool) -> Mixing:
    member = topologies.MENU.make(topology) if isinstance(topology, str) else topology
    view = View(comm.rank, comm.size, comm.placement)
    nodes = len(set(comm.placement)) or 1
    member.check(comm.size, nodes)
    if push:
        return split_mass(member, view, step)
    _refuse_biased(member, comm.size, nodes)
    return plain_row(member, view, step)


def _refuse_biased(topology: Any, size: int, nodes: int) -> None:
    if not topology.doubly_stochastic(size, nodes):
        raise WrongCommand(
            f"averaging on {topology}",
            why="columns of its weights do not sum to one, so it would converge to a wrong mean",
            remedy="neighbor_allreduce(push=True) with push-sum weights, or the topology's default weights",
        )


def _agree(
    comm: Any, self_weight: float | None, src: Mapping[int, float] | None, dst: Mapping[int, float] | None
) -> Mixing:
    """Tell everybody whom this rank hears and tells; absent means: whoever comes, with weight one."""
    listens, tells = (_told(comm, weights) for weights in (src, dst))
    table = torch.zeros(comm.size, 2, comm.size, dtype=torch.float64)
    comm.all_gather(torch.stack([listens, tells]), table, "weights of neighbors").wait()
    hears, sends = table[:, 0], table[:, 1]
    problems = [text for i in range(comm.size) for j in range(comm.size) for text in _mismatch(hears, sends, i, j)]
    if problems:
        raise WrongCommand("neighbor_allreduce", why="; ".join(problems[:3]), remedy="make both sides name the edge")
    me = comm.rank
    sources = [
        (j, _weight(hears, me, j) * _weight(sends, j, me)) for j in range(comm.size) if _edge(hears, sends, me, j)
    ]
    targets = tuple(i for i in range(comm.size) if _edge(hears, sends, i, me))
    keep = 1.0 - sum(weight for _, weight in sources) if self_weight is None else self_weight
    return Mixing(keep, tuple(sources), targets)


_OPEN, _ABSENT = float("inf"), float("nan")


def _told(comm: Any, weights: Mapping[int, float] | None) -> Tensor:
    if weights is None:
        return torch.full((comm.size,), _OPEN, dtype=torch.float64)
    row = torch.full((comm.size,), _ABSENT, dtype=torch.float64)
    for rank, weight in weights.items():
        if not 0 <= rank < comm.size or rank == comm.rank:
            row[comm.rank] = rank + 1.0  # told to everybody below, so that all ranks raise
            continue
        row[rank] = weight
    return row


def _mismatch(hears: Tensor, sends: Tensor, i: int, j: int) -> Sequence[str]:
    if i == j:
        wrong = [float(side[i, i]) for side in (hears, sends) if not torch.isnan(side[i, i]) and side[i, i] != _OPEN]
        return [f"rank {i} names rank {int(value) - 1}, which is not another rank" for value in wrong]
    listens, tells = not torch.isnan(hears[i, j]), not torch.isnan(sends[j, i])
    if listens and not tells:
        return [] if hears[i, j] == _OPEN else [f"rank {i} listens to rank {j}, which does not send to it"]
    if tells and not listens:
        return [] if sends[j, i] == _OPEN else [f"rank {j} sends to rank {i}, which does not listen"]
    return []


def _edge(hears: Tensor, sends: Tensor, i: int, j: int) -> bool:
    """Whether j sends to i: both name it, or one names it and the other takes whoever comes."""
    both = not torch.isnan(hears[i, j]) and not torch.isnan(sends[j, i])
    return i != j and both and not (hears[i, j] == _OPEN and sends[j, i] == _OPEN)


def _weight(side: Tensor, a: int, b: int) -> float:
    return 1.0 if side[a, b] == _OPEN else float(side[a, b])
