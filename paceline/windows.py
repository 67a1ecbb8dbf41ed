"""One-sided averaging as a library call: write into neighbors' memory, mix what has arrived, wait for nobody.

    win = paceline.window(x, topology="ring")
    win.put(x)                 my buffer on every target becomes x             win.update()    mean of own and arrived
    win.accumulate(x)          it grows by a share of x, which leaves here     win.collect()   own plus all that arrived
    win.get()                  my buffers become what the sources hold

With every x travels its mass p, as one more element of the same buffer, starting at 1. `accumulate` and `collect`
only hand mass over: the sum of x and the sum of p over ranks and buffers never change, in whatever order ranks
call, and x / p comes to the mean of all on any connected graph.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from paceline import topologies
from paceline.calls import Handle
from paceline.errors import UnknownName, WrongCommand
from paceline.exchanges.neighbor import plain_row, split_mass
from paceline.exchanges.window import rows_of, sources_of
from paceline.exchanges.works import Together
from paceline.joining import current
from paceline.transport import Comm, Work
from paceline.types import View

Weights = Mapping[int, float]
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def window(x: Tensor | None = None, *, name: str | None = None, topology: str | Any = "exp2") -> Window:
    """A new window that starts with x on this rank, made by all ranks together; without x, the one of that name."""
    worker = current()
    if x is None:
        if name not in worker.windows:
            raise UnknownName("window", str(name), worker.windows)
        found: Window = worker.windows[name]
        return found
    name = f"window {worker.windows_made}" if name is None else name
    member = topologies.MENU.make(topology) if isinstance(topology, str) else topology
    member.check(worker.size, len(set(worker.comm.placement)) or 1)
    _check_tensor(x)
    _agree(worker.comm, x, name, member, taken=name in worker.windows)
    worker.windows_made += 1
    worker.windows[name] = Window(worker.comm, x, name, member, lambda: worker.windows.pop(name))
    return worker.windows[name]


class Window:
    """One value per rank, and a buffer for each neighbor that may write here."""

    def __init__(self, comm: Comm, x: Tensor, name: str, topology: Any, forget: Any = None) -> None:
        self.name, self.topology, self._comm, self._forget = name, topology, comm, forget
        self._view = View(comm.rank, comm.size, comm.placement)
        self._shape, self._dtype = x.shape, x.dtype
        self._own = torch.cat([x.detach().reshape(-1), x.new_ones(1)])
        self._buffers: Any = comm.window(self._own.numel(), x.dtype, sources_of(topology, self._view))
        self.sources, self.targets = self._buffers.sources, self._buffers.targets
        self._buffers.show(self._own)
        comm.barrier()

    @property
    def x(self) -> Tensor:
        """This rank's value, a copy."""
        return self._own[:-1].clone().view(self._shape)

    @property
    def p(self) -> float:
        """The mass that belongs to x: 1, unless accumulate and collect moved it."""
        return float(self._own[-1])

    @property
    def mean(self) -> Tensor:
        """x / p."""
        return self.x / self._own[-1]

    def put(
        self,
        x: Tensor | None = None,
        *,
        dst_weights: Weights | None = None,
        self_weight: float = 1.0,
        step: int = 0,
        wait: bool = True,
    ) -> Any:
        """Replace this rank's buffer on each target by weight x (x, p); the own value becomes x, times self_weight.

        The targets are those of the topology at a step, with weight 1, or those of dst_weights.
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
        """Add weight x (x, p) to this rank's buffer on each target, and keep what is left of it.

        Without weights the value is cut into equal parts, one for each target of the topology at a step and one for
        this rank. With dst_weights this rank keeps the rest to one, or self_weight.
        """
        self._take_over(x)
        row = split_mass(self.topology, self._view, step)
        weights = self._checked(dst_weights, self.targets, "adds to", dict.fromkeys(row.targets, row.keep))
        rest = row.keep if dst_weights is None else 1.0 - sum(weights.values())
        works = [self._buffers.accumulate(target, self._own, weight) for target, weight in weights.items()]
        return self._keep(works, rest if self_weight is None else self_weight, wait)

    def get(self, src_weights: Weights | None = None, *, wait: bool = True) -> Any:
        """Replace the buffer of each source by weight x the value that it holds now; all sources, or those named."""
        self._check_live()
        weights = self._checked(src_weights, self.sources, "gets from", dict.fromkeys(self.sources, 1.0))
        return self._keep([self._buffers.get(source, weight) for source, weight in weights.items()], 1.0, wait)

    def update(
        self, *, self_weight: float | None = None, src_weights: Weights | None = None, reset: bool = False
    ) -> Tensor:
        """The weighted mean of the own value and of what has arrived; p becomes 1.

        (self_weight x + sum_j w_j x_j) / (self_weight p + sum_j w_j p_j) over the sources that wrote at all. Without
        weights they are the topology's. `reset` forgets what was read; otherwise it counts again the next time.
        """
        self._check_live()
        keep, weights = self._row(self_weight, src_weights)
        mixed = self._own * keep
        for source, weight in weights.items():
            self._buffers.fold(source, mixed, weight, clear=reset)
        if float(mixed[-1]) != 0:
            self._own = mixed.div_(mixed[-1].clone())
        self._buffers.show(self._own)
        return self.x

    def collect(self) -> Tensor:
        """The own value plus all that has arrived, p alike; what was read is gone from the buffers."""
        self._check_live()
        for source in self.sources:
            self._buffers.fold(source, self._own, clear=True)
        self._buffers.show(self._own)
        return self.x

    def versions(self) -> dict[int, int]:
        """How often each source has written since this rank last mixed it."""
        self._check_live()
        return dict(self._buffers.versions())

    @contextlib.contextmanager
    def mutex(self, ranks: int | Iterable[int], deadline: float | None = None) -> Iterator[None]:
        """Inside, no other rank is inside a mutex of these ranks. What it guards is up to those who use it."""
        self._check_live()
        wanted = sorted({ranks} if isinstance(ranks, int) else set(ranks))
        if wanted and not 0 <= wanted[0] <= wanted[-1] < self._view.size:
            raise WrongCommand(f"mutex of ranks {wanted}", why=f"there are ranks 0 to {self._view.size - 1}")
        with contextlib.ExitStack() as held:
            for rank in wanted:  # in one order on all ranks, so that no two wait for each other
                held.enter_context(self._buffers.mutex(rank, deadline))
            yield

    def free(self) -> None:
        """Give the memory back; all ranks together."""
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
                f"window {self.name!r} holds {_spoken(self._shape, self._dtype)}",
                why=f"got {_spoken(x.shape, x.dtype)}",
                remedy="a window of its own for another tensor",
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

    def _checked(self, given: Weights | None, known: tuple[int, ...], does: str, default: Weights) -> Weights:
        """The weights of the user, if they name neighbors only."""
        strangers = sorted(set(given or ()) - set(known))
        if strangers:
            raise WrongCommand(
                f"window {self.name!r} on {self.topology}",
                why=f"rank {self._view.rank} {does} {_listed(known)}, and weights name {_listed(strangers)}",
                remedy="a topology that has the edge",
            )
        return default if given is None else given

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


def _agree(comm: Comm, x: Tensor, name: str, topology: Any, *, taken: bool) -> None:
    """Compare what all ranks ask for, so that all raise or none."""
    mine = [
        int(taken),
        x.numel(),
        _DTYPES.index(x.dtype),
        *(zlib.crc32(str(word).encode()) for word in (name, topology)),
    ]
    table = torch.zeros(comm.size, len(mine), dtype=torch.int64)
    comm.all_gather(torch.tensor(mine), table, f"window {name!r}").wait()
    if table[:, 0].any():
        raise WrongCommand(
            f"window {name!r} exists already",
            why="names are taken until free()",
            remedy=f"window(name={name!r}) finds it",
        )
    other = next((rank for rank in range(comm.size) if not torch.equal(table[rank], table[comm.rank])), None)
    if other is not None:
        raise WrongCommand(
            f"window {name!r} with {_spoken(x.shape, x.dtype)} on {topology}",
            why=f"rank {comm.rank} and rank {other} ask for different windows",
            remedy="the same name, shape, dtype and topology on all ranks",
        )


def _spoken(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"a tensor of shape {tuple(shape)} and {dtype}"


def _listed(ranks: Iterable[int]) -> str:
    return f"rank {', '.join(map(str, ranks))}" if list(ranks) else "nobody"
