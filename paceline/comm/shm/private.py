"""A second mapping of shared memory that this process may write without anybody seeing it: copy on write.

    shared    | page | page | page |        written by the ranks of the host, each its part
    private   | page | COPY | page |        shows the shared pages, except those that were written here

The kernel copies a page when it is first written, whoever writes it: torch, numpy or C. /proc/self/pagemap says which
pages were copied, and dropping them shows the shared ones again.
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
    """A result as one rank sees it: what others write appears, what this rank writes stays here."""

    def __init__(self, raw: Tensor, numel: int, dtype: torch.dtype) -> None:
        self.vector = raw[: numel * dtype.itemsize].view(dtype)
        self._address, self._pages = raw.data_ptr(), -(-raw.numel() // PAGE)

    def written(self) -> bool:
        """Return whether anything was written since the last drop."""
        with open(PAGEMAP, "rb", buffering=0) as table:
            entries = np.frombuffer(os.pread(table.fileno(), 8 * self._pages, self._address // PAGE * 8), np.uint64)
        return bool((((entries & _PRESENT_OR_SWAPPED) != 0) & ((entries & _OF_A_FILE) == 0)).any())

    def drop(self) -> None:
        """Forget what was written: show what all ranks share."""
        if _libc.madvise(self._address, self._pages * PAGE, mmap.MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), "copied pages could not be dropped")

    def works(self) -> bool:
        """Return whether the kernel tells of copied pages; not every sandbox does. The view must be unused."""
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
