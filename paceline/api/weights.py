"""The weights of a topology that is written in words, for calls among neighbors."""

from __future__ import annotations

from typing import Any

from paceline.errors import WrongCommand
from paceline.strategy import topologies
from paceline.strategy.exchanges.neighbor import plain_row, split_mass
from paceline.types import Mixing, View


def topology_of(comm: Any, topology: str | Any) -> tuple[Any, View]:
    """Return the topology and this rank's view. Raises if the topology does not fit the comm."""
    member = topologies.MENU.make(topology) if isinstance(topology, str) else topology
    member.check(comm.size, len(set(comm.placement)) or 1)
    return member, View(comm.rank, comm.size, comm.placement)


def row_of(comm: Any, topology: str | Any, step: int, push: bool) -> Mixing:
    """Return this rank's Mixing by a topology at a step; with `push`, the one of push-sum."""
    member, view = topology_of(comm, topology)
    if push:
        return split_mass(member, view, step)
    refuse_biased(member, comm.size, len(set(comm.placement)) or 1)
    return plain_row(member, view, step)


def refuse_biased(topology: Any, size: int, nodes: int) -> None:
    if not topology.doubly_stochastic(size, nodes):
        raise WrongCommand(
            f"averaging on {topology}",
            why="columns of its weights do not sum to one, so it would converge to a wrong mean",
            remedy="neighbor_allreduce(push=True) with push-sum weights, or the topology's default weights",
        )
