"""Our compressors on stock DDP, for people whose framework owns the loop.

    ddp_model.register_comm_hook(*paceline.comm_hook("feedback(topk(ratio=0.01))"))

DDP calls the hook with one bucket of gradients after another; the mean over ranks, compressed, is there when the
hook returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, div, nn
from torch.futures import Future

from paceline.comm.hook import exchange_bucket
from paceline.comm.nccl import around_process_group
from paceline.compose import OWN, Machine, compose
from paceline.compressors.codec import check_model
from paceline.engine.arena import sides_of
from paceline.exchanges.allreduce import AllReduce
from paceline.protocols import Codec, Compressor
from paceline.run import Run
from paceline.transport import Comm
from paceline.types import Chunk, Lane, Layout, Slot, Unit, View

_LANE = Lane("gradient", needs_consensus=True, lossy_ok=True)


def comm_hook(
    compress: str, model: nn.Module | None = None, *, loss_scale: bool = False
) -> tuple[Buckets, Callable[[Buckets, Any], Future[Tensor]]]:
    """State and hook for `DistributedDataParallel.register_comm_hook`. Collective over the default process group.

    `compress` is written as for --compress, and refused for the same reasons. With `model`, an error names the
    tensor by its name there. With dgc the optimizer must have no momentum. `loss_scale` says that a GradScaler looks
    for infinity.
    """
    comm = around_process_group()
    machine = Machine(gpus=int(comm.backend == "nccl"))
    run = Run(workers=comm.size, compress=compress, precision="fp16" if loss_scale else "fp32")
    axes = compose(run, machine, unknown=OWN)
    assert axes is not None
    named = [] if model is None else [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    check_model(axes.compressor, [Slot(name, p.numel(), tuple(p.shape)) for name, p in named])
    return Buckets(axes.compressor, comm, {id(parameter): name for name, parameter in named}), exchange_bucket


class Buckets:
    """One codec per bucket. DDP deals buckets anew after its first step: what codecs keep follows the parameters."""

    def __init__(self, compressor: Compressor, comm: Comm, names: Mapping[int, str]) -> None:
        self._compressor, self._comm, self._names = compressor, comm, dict(names)
        self._channel = AllReduce().join(comm, View(comm.rank, comm.size), _LANE)
        self._bound: dict[int, tuple[tuple[int, ...], Codec | None]] = {}
        self._sources: dict[int, Tensor] = {}
        self._kept: dict[str, Any] = {}
        self._step = 0

    def exchange(self, index: int, parameters: Iterable[Tensor], buffer: Tensor) -> None:
        """buffer = its mean over ranks."""
        self._step += index == 0
        codec = self._codec(index, list(parameters), buffer)
        source = self._sources.get(index)
        if source is None or source.shape != buffer.shape or source.dtype != buffer.dtype:
            source = self._sources[index] = buffer.new_empty(buffer.shape)  # fresh memory costs more than the division
        div(buffer, self._comm.size, out=source)
        chunk = Chunk(index, 0, buffer.numel())
        self._channel.start(Unit(self._step, index), chunk, source, buffer, codec).wait()

    def _codec(self, index: int, parameters: list[Tensor], buffer: Tensor) -> Codec | None:
        identities = tuple(id(parameter) for parameter in parameters)
        if index in self._bound and self._bound[index][0] != identities:
            self._kept = self.state()
            self._bound.clear()
        if index not in self._bound:
            slots = tuple(Slot(self._name(p), p.numel(), sides_of(p)) for p in parameters)
            codec = self._compressor.bind(Layout(slots, buffer.itemsize), self._comm, buffer.dtype, False)
            if codec is not None and self._kept:
                codec.restore(self._kept)
            self._bound[index] = identities, codec
        return self._bound[index][1]

    def _name(self, parameter: Tensor) -> str:
        return self._names.setdefault(id(parameter), f"parameter {len(self._names)} of shape {tuple(parameter.shape)}")

    def state(self) -> dict[str, Any]:
        """What this rank's codecs keep, by the name of the parameter, for a checkpoint."""
        return merged([codec.state() for _, codec in self._bound.values() if codec is not None] + [self._kept])

    def restore(self, state: Mapping[str, Any]) -> None:
        self._kept = dict(state)
        self._bound.clear()


def merged(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The union of nested mappings; where two have the same key, the first."""
    found: dict[str, Any] = {}
    for state in states:
        for key, value in state.items():
            if isinstance(value, Mapping):
                found[key] = merged([found.get(key, {}), value])
            else:
                found.setdefault(key, value)
    return found
