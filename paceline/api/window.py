"""One-sided averaging as library calls: write into the memory of neighbors, and mix what has arrived, without waiting.

    win = paceline.window(x, topology="ring")
    win.put(x)          set this rank's buffer on every target to x            win.update()    mean of own x and buffers
    win.accumulate(x)   move a share of x into this rank's buffer on targets   win.collect()   own x plus all buffers
    win.get()           set the local buffers to the values of the sources

Every x travels with its mass p, one more element of the same buffer, which starts at 1. `accumulate` and `collect`
only move x and p: their sums over all ranks and buffers never change, in whatever order ranks call. So x / p converges
to the mean of all ranks on any connected graph.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from paceline.api.handle import Handle
from paceline.api.join import current
from paceline.comm.sums import wide
from paceline.comm.transport import Comm, Work
from paceline.errors import UnknownName, WrongCommand
from paceline.strategy import topologies
from paceline.strategy.exchanges._works import Together
from paceline.strategy.exchanges.neighbor import plain_row, split_mass
from paceline.strategy.exchanges.window import rows_of, sources_of
from paceline.types import View

Weights = Mapping[int, float]
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def window(
    x: Tensor | None = None, *, name: str | None = None, topology: str | Any = "exp2", zero_init: bool = True
) -> Window:
    """Create a window with the value x on this rank. Collective. Without x, return the existing window `name`.

    Buffers start empty. With zero_init=False, they start with this rank's own x, as if every source had put it there.
    """
    worker = current()
    if x is None:
        if name not in worker.windows:
            raise UnknownName("window", str(name), worker.windows)
        existing: Window = worker.windows[name]
        return existing
    name = f"window {worker.windows_made}" if name is None else name
    member = topologies.MENU.make(topology) if isinstance(topology, str) else topology
    member.check(worker.size, len(set(worker.comm.placement)) or 1)
    _check_tensor(x)
    _agree(worker.comm, x, name, member, zero_init, taken=name in worker.windows)
    worker.windows_made += 1
    worker.windows[name] = Window(worker.comm, x, name, member, lambda: worker.windows.pop(name))
    if not zero_init:
        worker.windows[name].start_with_own()
    return worker.windows[name]


class Window:
    """A value per rank, and a buffer for each neighbor that may write to this rank."""

    def __init__(self, comm: Comm, x: Tensor, name: str, topology: Any, forget: Any = None) -> None:
        self.name, self.topology, self._comm, self._forget = name, topology, comm, forget
        self._view = View(comm.rank, comm.size, comm.placement)
        self._shape, self._dtype = x.shape, x.dtype
        # Half precision is kept as float32, because masses and sums would be rounded again with every write.
        self._own = torch.cat([x.detach().reshape(-1), x.new_ones(1)]).to(wide(x.dtype))
        self._buffers: Any = comm.window(self._own.numel(), self._own.dtype, sources_of(topology, self._view))
        self.sources, self.targets = self._buffers.sources, self._buffers.targets
        self._buffers.show(self._own)
        comm.barrier()

    def start_with_own(self) -> None:
        """Set the buffers of each rank to the value of that rank, on all ranks. Collective."""
        for owner in range(self._view.size):
            value = self._own.clone()
            self._comm.broadcast(value, owner, f"window {self.name!r}, first value").wait()
            if owner in self.targets:
                self._buffers.put(owner, value).wait()
        self._comm.barrier()
        for source in self.sources:
            self._buffers.fold(source, self._buffers.empty())  # so that versions count from here
        self._comm.barrier()

    @property
    def x(self) -> Tensor:
        """Return a copy of this rank's value."""
        return self._own[:-1].to(self._dtype, copy=True).view(self._shape)

    @property
    def p(self) -> float:
        """Return the mass of x. It is 1, unless accumulate or collect has moved mass."""
        return float(self._own[-1])

    @property
    def mean(self) -> Tensor:
        """Return x / p."""
        return (self._own[:-1] / self._own[-1]).to(self._dtype).view(self._shape)

    def put(
        self,
        x: Tensor | None = None,
        *,
        dst_weights: Weights | None = None,
        self_weight: float = 1.0,
        step: int = 0,
        wait: bool = True,
    ) -> Any:
        """Set this rank's buffer on each target to weight * (x, p), and this rank's own value to self_weight * x.

        Targets are those of the topology at `step`, with weight 1, or those of dst_weights.
        """
        self._take_over(x)
        row = plain_row(self.topology, self._view, step)
        weights = self._checked(dst_weights, self.targets, "puts to", dict.fromkeys(row.targets, 1.0))
        works = [self._buffers.put(target, self._own, weight) for target, weight in weights.items()]
        return self._keep(works, self_weight, wait)

    def accumulate(
        self,
        x: Tensor | None = None,
        *,
        dst_weights: Weights | None = None,
        self_weight: float | None = None,
        step: int = 0,
        wait: bool = True,
    ) -> Any:
        """Add weight * (x, p) to this rank's buffer on each target, and keep the rest.

        Without weights the value is split into equal parts: one for each target of the topology at `step`, and one
        for this rank. With dst_weights this rank keeps self_weight, by default one minus their sum.
        """
        self._take_over(x)
        row = split_mass(self.topology, self._view, step)
        weights = self._checked(dst_weights, self.targets, "adds to", dict.fromkeys(row.targets, row.keep))
        rest = row.keep if dst_weights is None else 1.0 - sum(weights.values())
        works = [self._buffers.accumulate(target, self._own, weight) for target, weight in weights.items()]
        return self._keep(works, rest if self_weight is None else self_weight, wait)

    def get(self, src_weights: Weights | None = None, *, wait: bool = True) -> Any:
        """Set the buffer of each source (or of those in src_weights) to weight * the current value of that source."""
        self._check_live()
        weights = self._checked(src_weights, self.sources, "gets from", dict.fromkeys(self.sources, 1.0))
        return self._keep([self._buffers.get(source, weight) for source, weight in weights.items()], 1.0, wait)

    def update(
        self,
        *,
        self_weight: float | None = None,
        src_weights: Weights | None = None,
        reset: bool = False,
        normalize: bool = True,
    ) -> Tensor:
        """Set the value to the weighted mean of itself and the buffers, and p to 1. Return the new value.

        The mean is (self_weight x + sum_j w_j x_j) / (self_weight p + sum_j w_j p_j) over the sources that have
        written. Weights default to those of the topology. `reset` clears the buffers that were read; otherwise they
        count again next time. With normalize=False nothing is divided: x and p become the weighted sums themselves.
        """
        self._check_live()
        keep, weights = self._row(self_weight, src_weights)
        mixed = self._own * keep
        for source, weight in weights.items():
            self._buffers.fold(source, mixed, weight, clear=reset)
        if not normalize:
            self._own = mixed
        elif float(mixed[-1]) != 0:
            self._own = mixed.div_(mixed[-1].clone())
        self._buffers.show(self._own)
        return self.x

    def collect(self) -> Tensor:
        """Add all buffers to this rank's x and p, and clear the buffers. Return x."""
        self._check_live()
        for source in self.sources:
            self._buffers.fold(source, self._own, clear=True)
        self._buffers.show(self._own)
        return self.x

    def versions(self) -> dict[int, int]:
        """Return how often each source has written since this rank last read its buffer."""
        self._check_live()
        return dict(self._buffers.versions())

    @contextlib.contextmanager
    def mutex(self, ranks: int | Iterable[int], deadline: float | None = None) -> Iterator[None]:
        """Hold the mutexes of these ranks inside the with-block. Callers decide what a mutex protects."""
        self._check_live()
        wanted = sorted({ranks} if isinstance(ranks, int) else set(ranks))
        if wanted and not 0 <= wanted[0] <= wanted[-1] < self._view.size:
            raise WrongCommand(f"mutex of ranks {wanted}", why=f"there are ranks 0 to {self._view.size - 1}")
        with contextlib.ExitStack() as held:
            for rank in wanted:  # in the same order on all ranks, to avoid a deadlock
                held.enter_context(self._buffers.mutex(rank, deadline))
            yield

    def free(self) -> None:
        """Release the memory. Collective."""
        self._check_live()
        self._buffers.free()
        self._buffers = None
        if self._forget is not None:
            self._forget()

    def _take_over(self, x: Tensor | None) -> None:
        self._check_live()
        if x is None:
            return
        if x.shape != self._shape or x.dtype != self._dtype:
            raise WrongCommand(
                f"window {self.name!r} holds {_shape_text(self._shape, self._dtype)}",
                why=f"got {_shape_text(x.shape, x.dtype)}",
                remedy="paceline.window(x) for a second window",
            )
        self._own[:-1].copy_(x.detach().reshape(-1))

    def _keep(self, works: list[Work], weight: float, wait: bool) -> Any:
        if weight != 1.0:
            self._own.mul_(weight)
        self._buffers.show(self._own)
        handle = Handle(Together(works), self.x)
        return handle.wait() if wait else handle

    def _row(self, self_weight: float | None, src_weights: Weights | None) -> tuple[float, Weights]:
        if self_weight is None and src_weights is None:
            self._check_mean()
            rows = rows_of(self.topology, self._view)
            return rows[0].keep, {source: weight for row in rows for source, weight in row.sources}
        weights = self._checked(src_weights, self.sources, "mixes", {})
        if src_weights is None and self.sources:
            share = (1.0 - float(self_weight or 0.0)) / len(self.sources)
            weights = dict.fromkeys(self.sources, share)
        return 1.0 - sum(weights.values()) if self_weight is None else self_weight, weights

    def _checked(self, weights: Weights | None, known: tuple[int, ...], does: str, default: Weights) -> Weights:
        """Return the user's weights, or `default` if there are none. Raises if they name a rank that is no neighbor."""
        strangers = sorted(set(weights or ()) - set(known))
        if strangers:
            raise WrongCommand(
                f"window {self.name!r} on {self.topology}",
                why=f"rank {self._view.rank} {does} {_listed(known)}, and weights name {_listed(strangers)}",
                remedy="a topology that has the edge",
            )
        return default if weights is None else weights

    def _check_mean(self) -> None:
        if not self.topology.doubly_stochastic(self._view.size, len(set(self._view.nodes)) or 1):
            raise WrongCommand(
                f"averaging on {self.topology}",
                why="columns of its weights do not sum to one, so it would converge to a wrong mean",
                remedy="accumulate() and collect(), which find the mean as x / p",
            )

    def _check_live(self) -> None:
        if self._buffers is None:
            raise WrongCommand(
                f"window {self.name!r} was freed", why="its memory is gone", remedy="paceline.window(x) makes a new one"
            )


def _check_tensor(x: Tensor) -> None:
    if x.dtype not in _DTYPES:
        raise WrongCommand(f"a window of {x.dtype}", why="weights are fractions", remedy="x.float()")
    if x.device.type != "cpu":
        raise WrongCommand(f"a window on {x.device}", why="others write into its memory", remedy="x.cpu()")


def _agree(comm: Comm, x: Tensor, name: str, topology: Any, zero_init: bool, *, taken: bool) -> None:
    """Compare the arguments of all ranks. Either all ranks raise, or none does."""
    mine = [
        int(taken),
        int(zero_init),
        x.numel(),
        _DTYPES.index(x.dtype),
        *(zlib.crc32(str(word).encode()) for word in (name, topology)),
    ]
    table = torch.zeros(comm.size, len(mine), dtype=torch.int64)
    comm.all_gather(torch.tensor(mine), table, f"window {name!r}").wait()
    if table[:, 0].any():
        raise WrongCommand(
            f"window {name!r} exists already",
            why="a name can be used again only after free()",
            remedy=f"window(name={name!r}) returns it",
        )
    unlike = next((rank for rank in range(comm.size) if not torch.equal(table[rank], table[comm.rank])), None)
    if unlike is not None:
        raise WrongCommand(
            f"window {name!r} with {_shape_text(x.shape, x.dtype)} on {topology}",
            why=f"rank {comm.rank} and rank {unlike} ask for different windows",
            remedy="the same name, shape, dtype, topology and zero_init on all ranks",
        )


def _shape_text(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"a tensor of shape {tuple(shape)} and {dtype}"


def _listed(ranks: Iterable[int]) -> str:
    return f"rank {', '.join(map(str, ranks))}" if list(ranks) else "nobody"
