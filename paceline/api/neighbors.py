"""Collectives among neighbors, as library calls on any tensor. They block; with wait=False they return a handle.

Every rank makes the call, even one without neighbors, because ranks compare their calls.

y = paceline.neighbor_allreduce(x, topology="one_peer(exp2)", step=t)
y = paceline.neighbor_allreduce(x, self_weight=0.5, src_weights={1: 0.5}, dst_weights={3: 1.0})
y = paceline.neighbor_allgather(x, src_ranks=[1], dst_ranks=[3])
y = paceline.pair_gossip(x, worker.rank ^ 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.api.collectives import Finish, gather_counts, padded_to, shaped
from paceline.api.handle import Handle, into, result_of
from paceline.api.join import current
from paceline.api.weights import refuse_biased, row_of, topology_of
from paceline.comm.notes import tensor_text
from paceline.comm.sums import wide
from paceline.errors import WrongCommand
from paceline.protocols import Channel
from paceline.strategy.exchanges._works import Together
from paceline.strategy.exchanges.hierarchical import Hierarchical, NodesChannel, members
from paceline.strategy.exchanges.neighbor import plain_row
from paceline.train.weights import Weights, agree_nodes, agree_ranks
from paceline.types import Chunk, Cluster, Lane, Mixing, Unit, View

_LANE = Lane("tensor", needs_consensus=False, lossy_ok=False)
_WRITTEN = "weights of the caller"  # the key of the channel for weights that the caller passes; no topology's name


def neighbor_allreduce(
    x: Tensor,
    *,
    topology: str | Any = "exp2",
    step: int = 0,
    self_weight: float | None = None,
    src_weights: Weights = None,
    dst_weights: Weights = None,
    push: bool = False,
    wait: bool = True,
) -> Any:
    """Return self_weight x + sum_j src_weights[j] dst_weights_of_j[me] x_j, or without weights, the topology's mean.

    Explicit weights may name any edges; a list of ranks means weights of 1. Ranks first compare who sends to whom; a
    mismatch raises on all ranks. With `push`, the weights of the topology are those of push-sum, whose columns sum to
    one.
    """
    return _mixed(x, topology, step, self_weight, src_weights, dst_weights, push, wait, None)


def neighbor_allreduce_(
    x: Tensor,
    *,
    topology: str | Any = "exp2",
    step: int = 0,
    self_weight: float | None = None,
    src_weights: Weights = None,
    dst_weights: Weights = None,
    push: bool = False,
    wait: bool = True,
) -> Any:
    """Call neighbor_allreduce and write the result into x. Return x."""
    return _mixed(x, topology, step, self_weight, src_weights, dst_weights, push, wait, into(x))


def neighbor_allgather(
    x: Tensor,
    *,
    topology: str | Any = "exp2",
    step: int = 0,
    src_ranks: Sequence[int] | None = None,
    dst_ranks: Sequence[int] | None = None,
    wait: bool = True,
) -> Any:
    """Return the tensors that this rank's sources send, joined along the first dimension.

    They stand in the order of `src_ranks`, or else in rank order. The first dimension may differ from rank to rank.
    Neighbors are those of the topology at `step`, or `src_ranks` and `dst_ranks`. If only one of these is passed, the
    other accepts any peer. The rank's own tensor is not part of the result.
    """
    comm, x = current().comm, x.detach()
    rows = x.reshape(1) if x.dim() == 0 else x.contiguous()
    if src_ranks is not None or dst_ranks is not None:
        agreed = agree_ranks(comm, src_ranks, dst_ranks, "neighbor_allgather")
        heard, name = [agreed.sources(rank) for rank in range(comm.size)], "neighbor_allgather by ranks"
    else:
        member, view = topology_of(comm, topology)
        mixings = [plain_row(member, View(rank, view.size, view.nodes), step) for rank in range(comm.size)]
        heard = [sorted(source for source, _ in mixing.sources) for mixing in mixings]
        name = f"neighbor_allgather, {topology}, step {step}"
    counts = gather_counts(comm, rows, name).view(-1).tolist()
    src = padded_to(rows, max(counts))
    parts, works = [], []
    for k in range(max(map(len, heard)) if src.numel() else 0):  # in round k, every rank hears its k-th source
        parts.append(torch.empty_like(src))
        works.append(comm.mix(src, parts[-1], _copying(comm.rank, heard, k), f"{name}, round {k}"))

    def join(empty: Tensor) -> Tensor:
        order = heard[comm.rank] if src_ranks is None else [int(source) for source in src_ranks]
        mine = {source: part[: counts[source]] for source, part in zip(heard[comm.rank], parts, strict=False)}
        return torch.cat([empty, *(mine[source] for source in order if source in mine)])

    return result_of(Handle(Together(works), rows[:0].clone(), finish=join), wait)


def pair_gossip(
    x: Tensor,
    target_rank: int | None,
    *,
    self_weight: float | None = None,
    pair_weight: float | None = None,
    wait: bool = True,
) -> Any:
    """Return self_weight x + pair_weight x_target; by default the mean. The two ranks of a pair must name each other.

    All ranks must make the call. A rank without a partner passes None and gets its own tensor.
    """
    _check_fractions(x, "pair_gossip")
    peer = [] if target_rank is None else [target_rank]
    agreed = agree_ranks(current().comm, peer, peer, "pair_gossip")
    rest = 0.5 if self_weight is None else 1.0 - self_weight
    weight = rest if pair_weight is None else pair_weight
    keep = 1.0 if target_rank is None else 1.0 - weight if self_weight is None else self_weight
    row = agreed.row(current().rank)
    row = Mixing(keep, tuple((source, weight) for source, _ in row.sources), row.targets)
    return _mix(x, row, "pair_gossip", wait, None)


def hierarchical_neighbor_allreduce(
    x: Tensor,
    *,
    topology: str = "one_peer(exp2)",
    step: int = 0,
    self_weight: float | None = None,
    src_machine_weights: Weights = None,
    dst_machine_weights: Weights = None,
    wait: bool = True,
) -> Any:
    """Return the average inside each node, mixed with neighboring nodes. All ranks of a node get the same bits.

    Nodes mix by the topology, or by explicit weights of nodes, which must be equal on all ranks of a node. Calls with
    the same topology share memory, so an unfinished call is finished before the next one starts.
    """
    weights = self_weight, src_machine_weights, dst_machine_weights
    return _through_nodes(x, topology, step, weights, wait, None)


def hierarchical_neighbor_allreduce_(
    x: Tensor,
    *,
    topology: str = "one_peer(exp2)",
    step: int = 0,
    self_weight: float | None = None,
    src_machine_weights: Weights = None,
    dst_machine_weights: Weights = None,
    wait: bool = True,
) -> Any:
    """Call hierarchical_neighbor_allreduce and write the result into x. Return x."""
    weights = self_weight, src_machine_weights, dst_machine_weights
    return _through_nodes(x, topology, step, weights, wait, into(x))


def _mixed(
    x: Tensor,
    topology: Any,
    step: int,
    self_weight: float | None,
    src: Weights,
    dst: Weights,
    push: bool,
    wait: bool,
    finish: Finish,
) -> Any:
    _check_fractions(x, "neighbor_allreduce")
    comm = current().comm
    if src is None and dst is None and self_weight is None:
        row = row_of(comm, topology, step, push)
        return _mix(x, row, f"neighbor_allreduce, {topology}, step {step}, push {push}", wait, finish)
    row = agree_ranks(comm, src, dst, "neighbor_allreduce").row(comm.rank, self_weight)
    return _mix(x, row, "neighbor_allreduce by weights", wait, finish)


def _mix(x: Tensor, row: Mixing, key: str, wait: bool, finish: Finish) -> Any:
    comm, src = current().comm, x.detach().contiguous()
    out, key = torch.empty_like(src), shaped(key, x)
    comparison = comm.agree("mix", tensor_text(src), key)
    return result_of(Handle(comm.mix(src, out, row, key), out, comparison=comparison, finish=finish), wait)


def _copying(rank: int, heard: Sequence[Sequence[int]], k: int) -> Mixing:
    """Return the Mixing that copies the tensor of a rank's k-th source, without averaging."""
    source = heard[rank][k] if k < len(heard[rank]) else None
    targets = tuple(peer for peer, sources in enumerate(heard) if k < len(sources) and sources[k] == rank)
    return Mixing(1.0, (), targets) if source is None else Mixing(0.0, ((source, 1.0),), targets)


def _through_nodes(
    x: Tensor,
    topology: str,
    step: int,
    weights: tuple[float | None, Weights, Weights],
    wait: bool,
    finish: Finish,
) -> Any:
    worker = current()
    comm, written = worker.comm, weights != (None, None, None)
    name = _WRITTEN if written else topology
    cluster = Cluster(comm.placement or (0,) * comm.size)
    row = agree_nodes(comm, members(cluster), *weights, "hierarchical_neighbor_allreduce") if written else None
    if name not in worker.levels:
        worker.levels[name] = _WrittenNodes(comm, cluster) if written else _levels(comm, topology), None
    channel, before = worker.levels[name]
    if before is not None:
        before.wait()
    if written:
        channel.mixing = row
    unit = _ShapedUnit(step, 0)
    unit.name = shaped(f"hierarchical_neighbor_allreduce, {name}", x)
    comparison = comm.agree("hierarchical_neighbor_allreduce", tensor_text(x), unit)
    flat = x.detach().to(wide(x.dtype)).contiguous().view(-1)
    out = torch.empty_like(flat)
    work = channel.start(unit, Chunk(0, 0, flat.numel()), flat, out, None)
    worker.levels[name] = channel, work
    return result_of(Handle(work, out.view(x.shape), x.dtype, comparison, finish), wait)


class _ShapedUnit(Unit):
    """The unit of a library call. Comms that compare every call compare the shape of its tensor, too."""

    name: str

    def __str__(self) -> str:
        return f"{self.name}, step {self.step}"


class _WrittenNodes(NodesChannel):
    """The channel of nodes that mix by weights of the caller instead of a topology."""

    mixing: Mixing

    def __init__(self, comm: Any, cluster: Cluster) -> None:
        Hierarchical("neighbor(ring)").check(cluster)  # every node has the same number of ranks
        super().__init__(comm, cluster, self)

    def row(self, rank: int, view: View, step: int) -> Mixing:
        return self.mixing


def _levels(comm: Any, topology: str) -> Channel:
    exchange, view = Hierarchical(f"neighbor({topology})"), View(comm.rank, comm.size, comm.placement)
    count = len(set(comm.placement)) or 1
    exchange.check(Cluster(view.nodes or (0,) * view.size))
    refuse_biased(exchange.topology, count, count)
    return exchange.join(comm, view, _LANE)


def _check_fractions(x: Tensor, what: str) -> None:
    if not (x.is_floating_point() or x.is_complex()):
        raise WrongCommand(f"{what} of {x.dtype}", why="weights are fractions", remedy="x.float()")
