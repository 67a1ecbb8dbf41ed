"""The driver that lossy compressors share: it binds an operator to an arena.

    arena    | grad 0 | grad 1 | ... | flags |
                 operator, float32     exact

An operator works on the body of a chunk; the tail is sent unchanged beside it. The state of an operator (residuals,
momentum) lies in arena coordinates and is saved by the name of the tensor, so that it survives a new order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from paceline.comm.transport import Comm
from paceline.errors import BadMember, NonFinite, WorkloadError, WrongCommand
from paceline.protocols import Payload, Rounds
from paceline.strategy.compressors.traits import CompressorTraits, body_of
from paceline.types import Chunk, Layout

if TYPE_CHECKING:
    from torch import Tensor


class Operator(Protocol):
    """A compressor at work on float32 vectors.

    `rest`, if set, becomes src minus the part that this rank has sent. It may be the same tensor as `src`. An empty
    state resets the operator.
    """

    def rounds(self, piece: Chunk, src: Tensor, dst: Tensor, rest: Tensor | None) -> Rounds: ...

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Lossy(CompressorTraits):
    """A compressor that loses information. Its operator compresses the gradients of a chunk; flags are sent exactly."""

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> Operator:
        """Return the compressor at work on one arena; `shrunk` selects its contractive form."""
        raise NotImplementedError

    def bind(self, layout: Layout, comm: Comm, dtype: Any, shared: bool) -> ArenaCodec:
        if not dtype.is_floating_point:
            raise WorkloadError(f"compressor {self} on a tensor of {dtype}", why="it packs real numbers")
        operator = self.operator(layout, comm, shared, False)
        return ArenaCodec(f"{self}", operator, layout, comm, shared, kind=self.name)


def tensors_in(layout: Layout, piece: Chunk) -> list[tuple[int, int, int]]:
    """Return (slot, start, stop) of each tensor, or part of one, in a piece, counted from the start of the piece."""
    bounds = layout.offsets
    return [
        (slot, max(0, bounds[slot] - piece.start), min(piece.stop, bounds[slot + 1]) - piece.start)
        for slot in layout.slots_in(piece.start, piece.stop)
    ]


@dataclass
class CodingCost:
    """The cost of coding so far: bytes before and after, and seconds."""

    dense: int = 0
    coded: int = 0
    encode: float = 0.0
    decode: float = 0.0


class ArenaCodec:
    """Drives an operator: sends the flags of a chunk exactly, converts dtypes, takes times, and checks for NaN."""

    def __init__(
        self,
        text: str,
        operator: Operator,
        layout: Layout,
        comm: Comm,
        shared: bool,
        *,
        kind: str,
        looks: bool = True,
        wide: bool = False,
    ) -> None:
        """Bind an operator. `kind` names the owner of its state. With `looks`, NaN is refused.

        With `wide`, any dtype is taken.
        """
        self._text, self._operator, self._layout, self._comm = text, operator, layout, comm
        self._rooms, self._kind, self._looks, self._wide = Rooms(comm, shared), kind, looks, wide
        self.spent = CodingCost()

    def rounds(self, chunk: Chunk, src: Tensor, dst: Tensor) -> Rounds:
        piece = body_of(self._layout, chunk)
        self.spent.dense += src.nbytes
        if piece.numel:
            yield from self._timed(self._body(piece, src[: piece.numel], dst[: piece.numel]))
        if piece.numel < chunk.numel:
            source, total = self._rooms.pair(("tail", chunk.start), chunk.numel - piece.numel, src.dtype)
            source.copy_(src[piece.numel :])
            self.spent.coded += source.nbytes
            yield Payload("sum", source, total)
            dst[piece.numel :].copy_(total)

    def _body(self, piece: Chunk, src: Tensor, dst: Tensor) -> Rounds:
        if self._looks:
            self._look(piece, src)
        if self._wide or src.element_size() == 4:
            yield from self._operator.rounds(piece, src, dst, None)
            return
        wide = src.float()
        out = wide.new_empty(wide.shape)
        yield from self._operator.rounds(piece, wide, out, None)
        dst.copy_(out)

    def _timed(self, rounds: Rounds) -> Rounds:
        """Count the time until a payload is ready as encoding, and the time after the last payload as decoding."""
        while True:
            began = time.perf_counter()
            payload = next(rounds, None)
            seconds = time.perf_counter() - began
            if payload is None:
                self.spent.decode += seconds
                return
            self.spent.encode += seconds
            if payload.combine != "pass" or payload.target is not None:
                self.spent.coded += payload.tensor.nbytes
            yield payload

    def _look(self, piece: Chunk, src: Tensor) -> None:
        """Raise for NaN and infinity, which bits and indices cannot show. Takes one pass over memory."""
        total = float(src.sum())
        if total - total == 0:
            return
        for name, wrong, numel in not_finite(self._layout, piece, src):
            raise NonFinite(
                f"rank {self._comm.rank}: the gradient of {name} is not finite",
                why=f"{wrong:,} of {numel:,} numbers are NaN or infinite, and {self._text} cannot pack them",
                remedy=SMALLER,
            )

    def state(self) -> Mapping[str, Any]:
        kept = self._operator.state()
        return {"compressor": self._kind, **kept} if kept else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a state; the empty state, which a run without a compressor saves, resets the operator."""
        if state and state.get("compressor") != self._kind:
            raise WrongCommand(
                f"the saved state of compressor {state.get('compressor') or '(unnamed)'}",
                why=f"this run has {self._text}, which keeps something else",
                remedy="the compressor of the checkpoint, or load model and optimizer alone",
            )
        self._operator.restore(state)


SMALLER = "a smaller learning rate, or look at the batch of that rank"


def not_finite(layout: Layout, piece: Chunk, vector: Tensor) -> Iterator[tuple[str, int, int]]:
    """Yield name, number of bad elements, and length of each tensor of a piece with NaN or infinity."""
    for slot, start, stop in tensors_in(layout, piece):
        wrong = int((~vector[start:stop].isfinite()).sum())
        if wrong:
            yield layout.slots[slot].name, wrong, stop - start


class Rooms:
    """Memory for sums: one pair of send and receive buffers per payload. The first use is collective."""

    def __init__(self, comm: Comm, shared: bool) -> None:
        self._comm, self._shared = comm, shared
        self._pairs: dict[Any, tuple[Tensor, Tensor]] = {}

    def pair(self, key: Any, numel: int, dtype: Any) -> tuple[Tensor, Tensor]:
        pair = self._pairs.get((key, numel))
        if pair is None:
            source = self._comm.allocate(numel, dtype)
            result = self._comm.allocate_result(numel, dtype) if self._shared else source.new_zeros(numel)
            pair = self._pairs[key, numel] = (source, result)
        return pair


class Stateless:
    """An operator that keeps nothing between steps."""

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


def by_name(layout: Layout, vector: Tensor) -> dict[str, Tensor]:
    """Split a vector in arena coordinates into one tensor per slot."""
    bounds = layout.offsets
    return {slot.name: vector[bounds[k] : bounds[k + 1]].clone() for k, slot in enumerate(layout.slots)}


def put_back(layout: Layout, vector: Tensor, saved: Mapping[str, Tensor]) -> None:
    """Write saved tensors, which are found by slot name, to a vector in arena coordinates.

    Missing tensors become zero.
    """
    vector.zero_()
    for k, slot in enumerate(layout.slots):
        if slot.name in saved:
            if saved[slot.name].numel() != slot.numel:
                raise WrongCommand(
                    f"the saved state of {slot.name}",
                    why=f"it has {saved[slot.name].numel():,} numbers, the tensor {slot.numel:,}",
                    remedy="a checkpoint of the same model",
                )
            vector[layout.offsets[k] : layout.offsets[k + 1]].copy_(saved[slot.name])


def check_ratio(member: Any) -> None:
    if not 0 < member.ratio <= 1:
        raise BadMember(
            f"{member}",
            why=f"it sends a share of the elements: above 0 and at most 1; got {member.ratio:g}",
            remedy=f"{member.name}(ratio=0.01)",
        )


def check_least(member: Any, key: str, least: float, most: float = math.inf) -> None:
    value = getattr(member, key)
    if not least <= value <= most:
        limits = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        usual = next(field.default for field in fields(member) if field.name == key)
        raise BadMember(f"{member}", why=f"{key} is {limits}; got {value:g}", remedy=f"{member.name}({key}={usual:g})")


def check_momentum(member: Any) -> None:
    if not 0 <= member.momentum < 1:
        raise BadMember(
            f"{member}",
            why=f"a momentum lies in [0, 1); got {member.momentum:g}",
            remedy=f"{member.name}(momentum=0.9)",
        )
