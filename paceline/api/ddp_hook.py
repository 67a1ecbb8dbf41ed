"""A comm hook that uses paceline's compressors in stock DDP, for frameworks that own the training loop.

    ddp_model.register_comm_hook(*paceline.comm_hook("feedback(topk(ratio=0.01))"))

DDP calls the hook with one bucket of gradients after another. The hook compresses a bucket and exchanges it; when it
returns, the bucket holds the mean over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, div, nn
from torch.futures import Future

from paceline.cluster.machine import Machine
from paceline.comm.torch.hook import exchange_bucket
from paceline.comm.torch.nccl import around_process_group
from paceline.comm.transport import Comm
from paceline.engine.arena import sides_of
from paceline.protocols import Codec, Compressor
from paceline.run.compose.compose import OWN, compose
from paceline.run.run import Run
from paceline.strategy.exchanges.allreduce import AllReduce
from paceline.types import Chunk, Lane, Layout, Slot, Unit, View

_LANE = Lane("gradient", needs_consensus=True, lossy_ok=True)


def comm_hook(
    compress: str, model: nn.Module | None = None, *, loss_scale: bool = False
) -> tuple[Buckets, Callable[[Buckets, Any], Future[Tensor]]]:
    """Return the two arguments of `DistributedDataParallel.register_comm_hook`. Collective over the default group.

    `compress` has the syntax and the restrictions of --compress. With `model`, errors name its tensors. With dgc
    the optimizer must have no momentum. Set `loss_scale` if a GradScaler checks the gradients for infinity.
    """
    comm = around_process_group()
    machine = Machine(gpus=int(comm.backend == "nccl"))
    run = Run(workers=comm.size, compressor=compress, precision="fp16" if loss_scale else "fp32")
    axes = compose(run, machine, unknown=OWN).axes
    assert axes is not None
    named = [] if model is None else [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    axes.compressor.check([Slot(name, p.numel(), tuple(p.shape)) for name, p in named])
    return Buckets(axes.compressor, comm, {id(parameter): name for name, parameter in named}), exchange_bucket


class Buckets:
    """One codec per bucket. DDP rebuilds its buckets after the first step; codec state follows the parameters."""

    def __init__(self, compressor: Compressor, comm: Comm, names: Mapping[int, str]) -> None:
        self._compressor, self._comm, self._names = compressor, comm, dict(names)
        self._channel = AllReduce().join(comm, View(comm.rank, comm.size), _LANE)
        self._bound: dict[int, tuple[tuple[int, ...], Codec | None]] = {}
        self._sources: dict[int, Tensor] = {}
        self._kept: dict[str, Any] = {}
        self._step = 0

    def exchange(self, index: int, parameters: Iterable[Tensor], buffer: Tensor) -> None:
        """Replace the buffer by its mean over ranks."""
        self._step += index == 0
        codec = self._codec(index, list(parameters), buffer)
        source = self._sources.get(index)
        if source is None or source.shape != buffer.shape or source.dtype != buffer.dtype:
            source = self._sources[index] = buffer.new_empty(
                buffer.shape
            )  # reused, because allocating costs more than dividing
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
        """Return the state of this rank's codecs by parameter name, for a checkpoint."""
        return merged([codec.state() for _, codec in self._bound.values() if codec is not None] + [self._kept])

    def restore(self, state: Mapping[str, Any]) -> None:
        self._kept = dict(state)
        self._bound.clear()


def merged(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the union of nested mappings; the first value of a key wins."""
    union: dict[str, Any] = {}
    for state in states:
        for key, value in state.items():
            if isinstance(value, Mapping):
                union[key] = merged([union.get(key, {}), value])
            else:
                union.setdefault(key, value)
    return union
