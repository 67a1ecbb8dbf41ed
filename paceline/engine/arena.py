"""An arena: two vectors over all tensors that travel in one dtype. One is sent, the other holds what comes back.

    source   | grad 0 | grad 1 | ... | tail |      written by this rank only
    result   | mean 0 | mean 1 | ... | tail |      combined among ranks; on shm one memory for the whole host

Fresh gradients are moved into the source. `p.grad` becomes a view of the result, or of a private mapping of the
result if ranks share its memory. The tail holds a flag per gradient (see Layout), or the mass of push_sum; a lane of
parameters has no tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.comm.transport import Comm, PrivateMemory
from paceline.protocols import Codec, Compressor
from paceline.types import Layout, Slot


class Lease:
    """A wrapper of a comm that remembers its allocations, so that all of them can be released at once."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._taken: list[Tensor] = []

    def allocate(self, *what: Any) -> Tensor:
        return self._take(self._comm.allocate(*what))

    def allocate_result(self, *what: Any) -> Tensor:
        return self._take(self._comm.allocate_result(*what))

    def _take(self, vector: Tensor) -> Tensor:
        self._taken.append(vector)
        return vector

    def release(self, vector: Tensor) -> None:
        self._taken = [kept for kept in self._taken if kept is not vector]
        self._comm.release(vector)

    def give_back(self) -> None:
        for vector in self._taken:
            self._comm.release(vector)
        self._taken = []

    def __getattr__(self, name: str) -> Any:
        """Pass all other attributes on to the comm."""
        return getattr(self._comm, name)


class Arena:
    """The memory of tensors with the shapes of `likes`, in that order. Changing the order moves no memory.

    They travel in `dtype`, by default that of `likes`. The constructor computes the layout. `enter` allocates memory,
    and may be called again for another group.
    """

    def __init__(
        self,
        names: Sequence[str],
        likes: Sequence[Tensor],
        compressor: Compressor,
        *,
        tail: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._compressor, self._tail, self._shares = compressor, tail, False
        self.dtype = dtype or likes[0].dtype
        self.shared = False
        self.codec: Codec | None = None
        self._memory: Comm | None = None
        self._payloads: Any = None  # memory of the codec
        self.source = self.result = likes[0].new_zeros(0, dtype=self.dtype, requires_grad=False)
        self.private: PrivateMemory | None = None
        self.tail, self.source_views, self.result_views = self.source, list[Tensor](), list[Tensor]()
        self.private_views = self.result_views
        self._lay_out(names, likes)

    def enter(self, memory: Comm, *, shared: bool) -> None:
        """Allocate memory from the comm of a group, and release the memory of the previous group. Collective.

        A codec keeps its state. `shared` is whether the exchange writes one result for all ranks of a host.
        """
        self._shares = shared
        old = self.source
        if self._memory is not None:
            self.close()
        self._memory, self._payloads = memory, Lease(memory)
        self._bind()
        # With a codec, other ranks read its payload, and every rank writes the whole result.
        in_place = self._shares and memory.shares_results and self.codec is None
        self.shared = in_place and memory.size > 1
        own = self._likes[0].new_zeros(self.layout.numel, dtype=self.dtype, requires_grad=False)
        self.source = own if self.codec is not None else memory.allocate(len(own), self.dtype)
        self.result = memory.allocate_result(len(own), self.dtype) if in_place else torch.zeros_like(own)
        if len(old) == len(own):
            self.source.copy_(old)
        self.private = _usable(memory.private_view(self.result)) if self.shared else None
        self._make_views()

    def _lay_out(self, names: Sequence[str], likes: Sequence[Tensor]) -> None:
        self._names, self._likes = list(names), list(likes)
        slots = tuple(Slot(name, like.numel(), sides_of(like)) for name, like in zip(names, likes, strict=True))
        self.layout = Layout(slots, self.dtype.itemsize, tail=self._tail)

    def _bind(self) -> None:
        """Bind the compressor to the current layout and memory. The new codec takes over the state of the old one."""
        kept = None if self.codec is None else self.codec.state()
        self._payloads.give_back()
        self.codec = self._compressor.bind(self.layout, self._payloads, self.dtype, self._shares)
        if self.codec is not None and kept is not None:
            self.codec.restore(kept)

    def _make_views(self) -> None:
        self.source_views = self.views(self.source)
        self.result_views = self.views(self.result)
        self.private_views = self.result_views if self.private is None else self.views(self.private.vector)
        self.tail = self.source[self.layout.offsets[-1] :]
        self.tail.fill_(1)

    def reorder(self, order: Sequence[int]) -> None:
        """Put the slots into a new order. Call it between steps only. The state of a codec moves with its slots."""
        self._lay_out([self._names[i] for i in order], [self._likes[i] for i in order])
        if self._memory is not None:
            self._bind()
            self._make_views()

    def close(self) -> None:
        """Release source and result. The memory is freed with the last gradient that still refers to it."""
        if self._memory is not None:
            self._payloads.give_back()
            self._memory.release(self.source)
            self._memory.release(self.result)
        self.source = self.result = self.tail = self.source.new_zeros(0)
        self.source_views = self.result_views = self.private_views = []
        self.private = None

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector, one per slot, with the original shapes and memory formats."""
        return [
            _shaped(vector[start : start + like.numel()], like)
            for start, like in zip(self.layout.offsets, self._likes, strict=False)
        ]

    def counts(self) -> list[float]:
        """Return for each slot how many ranks had a gradient."""
        return list(map(float, self.result[self.layout.offsets[-1] :].tolist()))

    @property
    def mean(self) -> Tensor:
        """Return the result without its tail."""
        return self.result[: self.layout.offsets[-1]]


def _usable(view: PrivateMemory | None) -> PrivateMemory | None:
    """Return the private view, or None if the kernel does not report written pages, as in some sandboxes."""
    return view if view is not None and view.works() else None


def _shaped(flat: Tensor, like: Tensor) -> Tensor:
    if like.is_contiguous() or not _dense(like):
        return flat.view(like.shape)
    return flat.as_strided(like.shape, like.stride(), flat.storage_offset())


def sides_of(like: Tensor) -> tuple[int, ...]:
    """Return the sizes of a tensor's dimensions in the order of memory, slowest first.

    The arena stores the tensor in this order.
    """
    if like.is_contiguous() or not _dense(like):
        return tuple(like.shape)
    return tuple(like.shape[side] for side in sorted(range(like.dim()), key=like.stride, reverse=True))


def _dense(tensor: Tensor) -> bool:
    """Return whether a tensor fills its memory without holes or overlaps, as channels_last tensors do."""
    return torch._prims_common.is_non_overlapping_and_dense_or_false(tensor)
