"""Gates: hooks that stop forward before a module until the parameters that it uses have arrived.

Every module with own parameters has a gate. Some modules use the parameters of another module without calling it:
attention multiplies with the weight of its output layer. A Lesson watches the first forwards and finds such uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

Arrive = Callable[[Sequence[int]], None]


class HookOfOne:
    """A hook that acts for a module and for modules that share its parameters, but not for a copy of the module.

    A deep copy of a model refers to the same hook, which does nothing for the copy. Pickling first calls `settle`,
    which finishes updates that are under way. The pickled hook does nothing.
    """

    def __init__(self, module: nn.Module, act: Callable[..., Any], settle: Callable[[], None] | None) -> None:
        self._module, self._own, self._act, self._settle = module, module._parameters, act, settle

    def __call__(self, called: nn.Module, *rest: Any) -> None:
        if called is self._module or called._parameters is self._own:
            self._act(called, *rest)

    def __deepcopy__(self, memory: Any) -> HookOfOne:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._settle is not None:
            self._settle()
        return _idle, ()


def _nothing(*_: Any) -> None:
    """Do nothing. Hooks of a pickled model are replaced by this function."""


def _idle() -> Callable[..., None]:
    return _nothing


def for_one(module: nn.Module, act: Callable[..., Any], settle: Callable[[], None] | None = None) -> HookOfOne:
    """Return a hook that acts for a module, but not for a copy of it. `settle` is called before pickling."""
    return HookOfOne(module, act, settle)


class Gates:
    """Calls `arrive(positions)` before a module runs, with the positions of the parameters that the module uses."""

    def __init__(self, model: nn.Module, parameters: Iterable[Tensor], arrive: Arrive) -> None:
        self._model, self._arrive = model, arrive
        self._position = {id(parameter): k for k, parameter in enumerate(parameters)}
        self._uses: dict[nn.Module, list[int]] = {}
        self._hooks: list[Any] = []
        for module in model.modules():
            self._open(module, [self._position.get(id(p), -1) for p in module.parameters(recurse=False)])
        self._lesson: Lesson | None = Lesson(model, self._position, self._open)

    def _open(self, module: nn.Module, positions: Iterable[int]) -> None:
        """Add a gate before this module for these parameters."""
        known = self._uses.get(module)
        fresh = [k for k in positions if k >= 0 and k not in (known or ())]
        if known is None and fresh:
            known = self._uses.setdefault(module, [])
            uses, arrive = known, self._arrive
            stop = for_one(module, lambda *_: arrive(uses))
            self._hooks.append(module.register_forward_pre_hook(stop, prepend=True))
        if known is not None:
            known += fresh

    def learned(self) -> None:
        """Stop watching. From now on, every forward is assumed to use parameters as the earlier ones did."""
        if self._lesson is not None:
            self._lesson.close()
            self._lesson = None

    def close(self) -> None:
        self.learned()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


class Lesson(TorchFunctionMode):
    """Watches forward passes and reports which module uses which parameters, including those of other modules."""

    def __init__(
        self, model: nn.Module, position: dict[int, int], on_use: Callable[[nn.Module, Iterable[int]], None]
    ) -> None:
        super().__init__()
        self._model, self._position, self._on_use = model, position, on_use
        self._inside: list[nn.Module] = []
        self._hooks = [
            hook
            for module in model.modules()
            for hook in (
                module.register_forward_pre_hook(for_one(module, self._enter), prepend=True),
                module.register_forward_hook(for_one(module, self._leave), always_call=True),
            )
        ]

    def _enter(self, module: nn.Module, arguments: Any) -> None:
        if not self._inside:
            self.__enter__()
        self._inside.append(module)

    def _leave(self, module: nn.Module, arguments: Any, result: Any) -> None:
        while self._inside and self._inside.pop() is not module:
            pass  # modules whose forward raised an exception
        if not self._inside:
            self.__exit__(None, None, None)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._inside and getattr(function, "__name__", "") != "__get__":  # reading shape or dtype is not a use
            used = [
                self._position.get(id(leaf), -1) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)
            ]
            self._on_use(self._inside[-1], used)
        return function(*args, **(kwargs or {}))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
