"""Collectives as library calls on any tensor. They block, or with wait=False return a handle with a wait() method.

Autograd does not record them: a result has no history, even if x has. Half precision is added in float32, sent as
float32 and rounded once.

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

from paceline.api.join import current
from paceline.comm.notes import tensor_text
from paceline.comm.sums import wide
from paceline.comm.transport import Work
from paceline.errors import WrongCommand
from paceline.protocols import Channel
from paceline.strategy import topologies
from paceline.strategy.exchanges.hierarchical import Hierarchical
from paceline.strategy.exchanges.neighbor import plain_row, split_mass
from paceline.types import Chunk, Cluster, Lane, Mixing, Unit, View

_LANE = Lane("tensor", needs_consensus=False, lossy_ok=False)


class Handle:
    """A call in progress. The result is converted to `dtype` if it was computed in another one."""

    def __init__(
        self, work: Work, result: Tensor, dtype: torch.dtype | None = None, comparison: Work | None = None
    ) -> None:
        self._work, self._result, self._dtype, self._comparison = work, result, dtype or result.dtype, comparison

    def wait(self, deadline: float | None = None) -> Tensor:
        if self._comparison is not None:  # before the result is used, ranks have compared their calls
            self._comparison.wait(deadline)
        self._work.wait(deadline)
        if self._result.dtype != self._dtype:
            self._result = self._result.to(self._dtype)
        return self._result

    def done(self) -> bool:
        return self._work.done()


def allreduce(x: Tensor, *, average: bool = True, wait: bool = True) -> Any:
    """Return the mean over ranks, or with average=False the sum. Integer tensors can only be summed."""
    comm = current().comm
    if average and not (x.is_floating_point() or x.is_complex()):
        raise WrongCommand(f"allreduce of {x.dtype}", why="whole numbers have no mean", remedy="average=False")
    whole = x.detach().to(wide(x.dtype))
    src = (whole / comm.size if average else whole).contiguous()
    out = torch.empty_like(src)
    return _give(Handle(comm.all_sum(src, out, "allreduce"), out, x.dtype), wait)


def broadcast(x: Tensor, root: int = 0, *, wait: bool = True) -> Any:
    """Return the root's tensor on every rank; x itself is not modified."""
    comm, out = current().comm, x.detach().clone()
    return _give(Handle(comm.broadcast(out, root, "broadcast"), out), wait)


def allgather(x: Tensor, *, wait: bool = True) -> Any:
    """Return every rank's tensor, stacked in rank order."""
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
    """Return self_weight x + sum_j src_weights[j] dst_weights_of_j[me] x_j, or the mean by a topology's weights.

    Explicit weights may name any edges. All ranks first compare who sends and who receives, and a mismatch raises
    on all of them. With `push`, the topology's weights are those of push-sum, whose columns sum to one.
    """
    comm = current().comm
    if not (x.is_floating_point() or x.is_complex()):
        raise WrongCommand(f"neighbor_allreduce of {x.dtype}", why="weights are fractions", remedy="x.float()")
    weighted = src_weights is not None or dst_weights is not None or self_weight is not None
    row = _agree(comm, self_weight, src_weights, dst_weights) if weighted else _row_of(comm, topology, step, push)
    src = x.detach().contiguous()
    out = torch.empty_like(src)
    key = "neighbor_allreduce by weights" if weighted else f"neighbor_allreduce, {topology}, step {step}, push {push}"
    comparison = comm.agree("mix", tensor_text(src), key)
    return _give(Handle(comm.mix(src, out, row, key), out, comparison=comparison), wait)


def hierarchical_neighbor_allreduce(
    x: Tensor, *, topology: str = "one_peer(exp2)", step: int = 0, wait: bool = True
) -> Any:
    """Average inside each node, then with neighboring nodes; all ranks of a node get the same bits.

    Calls with the same topology share memory: an unfinished call is finished before the next one starts.
    """
    worker = current()
    comm = worker.comm
    if topology not in worker.levels:
        worker.levels[topology] = _levels(comm, topology), None
    channel, before = worker.levels[topology]
    if before is not None:
        before.wait()
    comparison = comm.agree("hierarchical_neighbor_allreduce", tensor_text(x), f"{topology}, step {step}")
    flat = x.detach().to(wide(x.dtype)).contiguous().view(-1)
    out = torch.empty_like(flat)
    work = channel.start(Unit(step, 0), Chunk(0, 0, flat.numel()), flat, out, None)
    worker.levels[topology] = channel, work
    return _give(Handle(work, out.view(x.shape), x.dtype, comparison), wait)


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
    """Gather all ranks' weights and check that both ends name each edge.

    A side without weights accepts any peer with weight 1.
    """
    listens, tells = (_row_to_gather(comm, weights) for weights in (src, dst))
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


def _row_to_gather(comm: Any, weights: Mapping[int, float] | None) -> Tensor:
    if weights is None:
        return torch.full((comm.size,), _OPEN, dtype=torch.float64)
    row = torch.full((comm.size,), _ABSENT, dtype=torch.float64)
    for rank, weight in weights.items():
        if not 0 <= rank < comm.size or rank == comm.rank:
            row[comm.rank] = rank + 1.0  # the diagonal carries the error, so that all ranks raise
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
    """Return whether j sends to i: both name the edge, or one names it and the other accepts any peer."""
    both = not torch.isnan(hears[i, j]) and not torch.isnan(sends[j, i])
    return i != j and both and not (hears[i, j] == _OPEN and sends[j, i] == _OPEN)


def _weight(side: Tensor, a: int, b: int) -> float:
    return 1.0 if side[a, b] == _OPEN else float(side[a, b])
