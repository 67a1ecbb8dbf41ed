"""A second, copy-on-write mapping of shared memory. Other processes do not see what this process writes to it.

    shared    | page | page | page |        every rank of the host writes its part
    private   | page | COPY | page |        shows the shared pages, except pages that this process has written

The kernel copies a page on the first write, no matter whether torch, numpy or C code writes. /proc/self/pagemap says
which pages were copied. After they are dropped, the mapping shows the shared pages again.

Every copy is a page fault of this process. So if the process had no page fault since the last look, nothing was copied,
and the pages need not be looked at: the usual case for a model whose steps reuse their memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from typing import Any

import numpy as np
import torch
from torch import Tensor

PAGE = mmap.PAGESIZE
PAGEMAP = "/proc/self/pagemap"
_PRESENT_OR_SWAPPED, _OF_A_FILE = np.uint64(3 << 62), np.uint64(1 << 61)

_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class PrivateView:
    """A private mapping of a result. Writes of other ranks appear in it; writes of this rank are not seen by others."""

    def __init__(self, raw: Tensor, numel: int, dtype: torch.dtype) -> None:
        self.vector = raw[: numel * dtype.itemsize].view(dtype)
        self._address, self._pages = raw.data_ptr(), -(-raw.numel() // PAGE)
        self._counts = False  # whether a write is known to raise the count of page faults
        self._clean = -1  # the count of page faults before the last look that found no copied page

    def written(self) -> bool:
        """Return whether this process has written to the view since the last drop."""
        faults = _page_faults()
        if self._counts and faults == self._clean:
            return False
        written = self._has_copies()
        self._clean = -1 if written else faults
        return written

    def drop(self) -> None:
        """Discard what this process has written, so that the view shows the shared values again."""
        faults = _page_faults()
        if _libc.madvise(self._address, self._pages * PAGE, mmap.MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), "copied pages could not be dropped")
        self._clean = faults

    def works(self) -> bool:
        """Return whether the kernel reports copied pages; some sandboxes do not. Call it before the view is used."""
        if not self.vector.numel():
            return False
        try:
            before, faults = self.written(), _page_faults()
            self.vector[:1] += 0
            self._counts = _page_faults() > faults
            after = self.written()
            self.drop()
            return not before and after and not self._has_copies()
        except (OSError, ValueError):
            return False

    def _has_copies(self) -> bool:
        """Ask the kernel whether any page of the view is a copy."""
        table = os.open(PAGEMAP, os.O_RDONLY | os.O_CLOEXEC)
        try:
            entries = np.frombuffer(os.pread(table, 8 * self._pages, self._address // PAGE * 8), np.uint64)
        finally:
            os.close(table)
        return bool((((entries & _PRESENT_OR_SWAPPED) != 0) & ((entries & _OF_A_FILE) == 0)).any())


def _page_faults() -> int:
    """Return how many page faults the threads of this process have had so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt
