"""What p.grad is where there is no mean gradient to show: any operation on it is refused in words.

With a schedule that crosses the step the mean is not there before the next forward, and with rule server it is on the
servers. Shape, dtype and device can be read. `p.grad is None` cannot be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Refuse = Callable[[str], Exception]


def withheld(like: Tensor, refuse: Refuse) -> Tensor:
    """Return a tensor without memory that looks like `like`; `refuse(operation)` makes the error of each operation."""
    placeholder: Tensor = _kind()(like, refuse)
    return placeholder


@cache
def _kind() -> Any:
    import torch

    class Withheld(torch.Tensor):
        """A gradient that nobody may look at."""

        __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
        refuse: Refuse

        @staticmethod
        def __new__(cls: Any, like: Tensor, refuse: Refuse) -> Any:
            self = torch.Tensor._make_wrapper_subclass(
                cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
            )
            self.refuse = refuse
            return self

        def __init__(self, *_: Any) -> None:
            pass

        def __repr__(self, **_: Any) -> str:  # type: ignore[override]
            return f"Withheld(shape={tuple(self.shape)})"

        def numpy(self, **_: Any) -> Any:
            raise self.refuse("numpy")

        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            from torch.utils._pytree import tree_leaves

            own = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Withheld))
            raise own.refuse(function.overloadpacket.__name__)

    return Withheld
