"""paceline: train one model on many workers with any strategy; race strategies; see how they scale.

Public names are loaded on first use, so that importing paceline loads no torch.
"""

from __future__ import annotations

import importlib
import os

from paceline._version import VERSION as __version__

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, but importing typing would take half of the time of this file
if TYPE_CHECKING:
    from typing import Any

    from paceline import race
    from paceline.api.collectives import allgather, allreduce, allreduce_, broadcast, broadcast_
    from paceline.api.ddp_hook import comm_hook
    from paceline.api.join import Worker, join, log
    from paceline.api.neighbors import (
        hierarchical_neighbor_allreduce,
        hierarchical_neighbor_allreduce_,
        neighbor_allgather,
        neighbor_allreduce,
        neighbor_allreduce_,
        pair_gossip,
    )
    from paceline.api.sampler import sampler
    from paceline.api.state import broadcast_optimizer_state, broadcast_parameters
    from paceline.api.window import Window, window
    from paceline.api.wrap import wrap
    from paceline.comm.thread import run_ranks
    from paceline.errors import PacelineError, Refused
    from paceline.forecast.outlook import outlook
    from paceline.measure.record.record import Record
    from paceline.measure.record.store import open_store
    from paceline.measure.stats.steady import settle
    from paceline.race.notebook import records
    from paceline.race.suite import Suite
    from paceline.report.page import write_report
    from paceline.run.compose.compose import compose
    from paceline.run.run import Run
    from paceline.strategy import compressors, exchanges, memberships, rules, schedules, topologies
    from paceline.strategy.topologies.graph import Graph
    from paceline.train.pace import Pace
    from paceline.types import Chunk, Cluster, Cursor, Layout, Link, Mixing, Place, Plan, Profile, Slot, View, Workload
    from paceline.workload import models, sources
    from paceline.workload.profile import StepProfile
    from paceline.workload.replayed import replayed

_HOMES = {
    "join": "paceline.api.join",
    "wrap": "paceline.api.wrap",
    "log": "paceline.api.join",
    "Worker": "paceline.api.join",
    "Pace": "paceline.train.pace",
    "Workload": "paceline.types",
    "PacelineError": "paceline.errors",
    "allreduce": "paceline.api.collectives",
    "broadcast": "paceline.api.collectives",
    "comm_hook": "paceline.api.ddp_hook",
    "allgather": "paceline.api.collectives",
    "allreduce_": "paceline.api.collectives",
    "broadcast_": "paceline.api.collectives",
    "hierarchical_neighbor_allreduce": "paceline.api.neighbors",
    "hierarchical_neighbor_allreduce_": "paceline.api.neighbors",
    "neighbor_allgather": "paceline.api.neighbors",
    "neighbor_allreduce": "paceline.api.neighbors",
    "neighbor_allreduce_": "paceline.api.neighbors",
    "pair_gossip": "paceline.api.neighbors",
    "sampler": "paceline.api.sampler",
    "broadcast_optimizer_state": "paceline.api.state",
    "broadcast_parameters": "paceline.api.state",
    "window": "paceline.api.window",
    "Window": "paceline.api.window",
    "Chunk": "paceline.types",
    "Cluster": "paceline.types",
    "Cursor": "paceline.types",
    "Layout": "paceline.types",
    "Link": "paceline.types",
    "Mixing": "paceline.types",
    "Place": "paceline.types",
    "Plan": "paceline.types",
    "Profile": "paceline.types",
    "Slot": "paceline.types",
    "View": "paceline.types",
    "Refused": "paceline.errors",
    "Graph": "paceline.strategy.topologies.graph",
    "Run": "paceline.run.run",
    "Record": "paceline.measure.record.record",
    "StepProfile": "paceline.workload.profile",
    "open_store": "paceline.measure.record.store",
    "outlook": "paceline.forecast.outlook",
    "write_report": "paceline.report.page",
    "run_ranks": "paceline.comm.thread",
    "compose": "paceline.run.compose.compose",
    "replayed": "paceline.workload.replayed",
    "Suite": "paceline.race.suite",
    "settle": "paceline.measure.stats.steady",
    "records": "paceline.race.notebook",
}
# Families, each with its MENU: `paceline.schedules.MENU.make("fusion(mb=8)")`.
_FAMILIES = {
    "rules": "paceline.strategy.rules",
    "exchanges": "paceline.strategy.exchanges",
    "topologies": "paceline.strategy.topologies",
    "schedules": "paceline.strategy.schedules",
    "compressors": "paceline.strategy.compressors",
    "memberships": "paceline.strategy.memberships",
    "models": "paceline.workload.models",
    "sources": "paceline.workload.sources",
    "race": "paceline.race",  # a room that can be called: paceline.race(model=..., strategies=[...])
}

__all__ = [
    "Chunk",
    "Cluster",
    "Cursor",
    "Graph",
    "Layout",
    "Link",
    "Mixing",
    "Pace",
    "PacelineError",
    "Place",
    "Plan",
    "Profile",
    "Record",
    "Refused",
    "Run",
    "Slot",
    "StepProfile",
    "Suite",
    "View",
    "Window",
    "Worker",
    "Workload",
    "__version__",
    "allgather",
    "allreduce",
    "allreduce_",
    "broadcast",
    "broadcast_",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "comm_hook",
    "compose",
    "compressors",
    "exchanges",
    "hierarchical_neighbor_allreduce",
    "hierarchical_neighbor_allreduce_",
    "join",
    "log",
    "memberships",
    "models",
    "neighbor_allgather",
    "neighbor_allreduce",
    "neighbor_allreduce_",
    "open_store",
    "outlook",
    "pair_gossip",
    "race",
    "records",
    "replayed",
    "rules",
    "run_ranks",
    "sampler",
    "schedules",
    "settle",
    "sources",
    "topologies",
    "window",
    "wrap",
    "write_report",
]


if "PACELINE_GUARD" in os.environ:  # a process of `paceline run`
    from paceline.comm.interruption import watch

    _interruption = watch()
else:
    _interruption = None


def __getattr__(name: str) -> Any:
    if _interruption is not None:
        _interruption.check()
    if name in _FAMILIES:
        return importlib.import_module(_FAMILIES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
