"""A second, copy-on-write mapping of shared memory. Other processes do not see what this process writes to it.

    shared    | page | page | page |        every rank of the host writes its part
    private   | page | COPY | page |        shows the shared pages, except pages that this process has written

The kernel copies a page on the first write, no matter whether torch, numpy or C code writes. /proc/self/pagemap says
which pages were copied. After they are dropped, the mapping shows the shared pages again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
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

    def written(self) -> bool:
        """Return whether this process has written to the view since the last drop."""
        with open(PAGEMAP, "rb", buffering=0) as table:
            entries = np.frombuffer(os.pread(table.fileno(), 8 * self._pages, self._address // PAGE * 8), np.uint64)
        return bool((((entries & _PRESENT_OR_SWAPPED) != 0) & ((entries & _OF_A_FILE) == 0)).any())

    def drop(self) -> None:
        """Discard what this process has written, so that the view shows the shared values again."""
        if _libc.madvise(self._address, self._pages * PAGE, mmap.MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), "copied pages could not be dropped")

    def works(self) -> bool:
        """Return whether the kernel reports copied pages; some sandboxes do not. Call it before the view is used."""
        if not self.vector.numel():
            return False
        try:
            before = self.written()
            self.vector[:1] += 0
            after = self.written()
            self.drop()
            return not before and after and not self.written()
        except (OSError, ValueError):
            return False
