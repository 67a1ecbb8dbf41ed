"""The handle of a library call that is in progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paceline.comm.transport import Work


class Handle:
    """A call in progress.

    The result is converted to `dtype` if it was computed in another one. wait() returns `finish(result)` if there is a
    `finish`, else the result.
    """

    def __init__(
        self,
        work: Work,
        result: Tensor,
        dtype: torch.dtype | None = None,
        comparison: Work | None = None,
        finish: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._work, self._result, self._dtype, self._comparison = work, result, dtype or result.dtype, comparison
        self._finish = finish

    def wait(self, deadline: float | None = None) -> Tensor:
        if self._comparison is not None:  # before the result is used, ranks have compared their calls
            self._comparison.wait(deadline)
        self._work.wait(deadline)
        if self._result.dtype != self._dtype:
            self._result = self._result.to(self._dtype)
        if self._finish is not None:
            self._result, self._finish = self._finish(self._result), None
        return self._result

    def done(self) -> bool:
        return self._work.done()


def result_of(handle: Handle, wait: bool) -> Any:
    """Return the result if `wait` is set, else the handle."""
    return handle.wait() if wait else handle


def into(x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function for `finish` that writes the result into x and returns x."""

    def write(result: Tensor) -> Tensor:
        x.detach().copy_(result)
        return x

    return write
