"""The placeholder in p.grad if there is no mean gradient to show: every operation on it is refused with the reason.

With a schedule that crosses the step the mean is not there before the next forward, and with rule server it is on the
servers. Shape, dtype and device can be read. `p.grad is None` cannot be refused.

With several models a gradient leaves in step(). Until then it is kept here, and a backward adds to it:

    backward    hook    keep p.grad here; p.grad = placeholder
    backward    before  p.grad = what is kept, so that autograd adds to it; then as above
    step()              p.grad = what is kept, unless zero_grad has taken the placeholder away
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter

Refuse = Callable[[str], Exception]


def withheld(like: Tensor, refuse: Refuse) -> Tensor:
    """Return a tensor without memory that looks like `like`; `refuse(operation)` makes the error of each operation."""
    placeholder: Tensor = _kind()(like, refuse)
    return placeholder


class Withholding:
    """Puts placeholders into `p.grad` of these parameters, and keeps the real gradients until step()."""

    def __init__(self, parameters: Iterable[Parameter], refuse: Refuse) -> None:
        self._parameters = {id(parameter): parameter for parameter in parameters}
        self._placeholders = {key: withheld(parameter, refuse) for key, parameter in self._parameters.items()}
        self._kept: dict[int, Tensor] = {}
        self._hooks: list[Any] = []

    def withhold(self, parameter: Tensor) -> None:
        """Show the placeholder instead of a gradient that has left."""
        parameter.grad = self._placeholders[id(parameter)]

    def hide(self, parameter: Tensor) -> None:
        """Keep the gradient until it leaves, and show the placeholder."""
        if not self._hooks:
            trained = [each for each in self._parameters.values() if each.requires_grad]
            self._hooks = [each.register_hook(partial(self._show, each)) for each in trained]
        assert parameter.grad is not None, "autograd has just filled it"
        self._kept[id(parameter)] = parameter.grad
        self.withhold(parameter)

    def _show(self, parameter: Tensor, _: Any = None) -> None:
        kept = self._kept.pop(id(parameter), None)
        if kept is not None and parameter.grad is self._placeholders[id(parameter)]:
            parameter.grad = kept

    def show(self) -> None:
        """Put back every gradient that zero_grad has not discarded."""
        for key in list(self._kept):
            self._show(self._parameters[key])

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._kept.clear()


@cache
def _kind() -> Any:
    import torch

    class Withheld(torch.Tensor):
        """A gradient on which every operation is refused."""

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
