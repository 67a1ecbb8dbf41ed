"""Optimizers of torch.optim as written on the command line: `sgd(lr=0.1, momentum=0.9)`, `adamw(lr=1e-3)`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from typing import Any

import torch

from paceline.errors import BadMember, UnknownName
from paceline.menu.grammar import Spec, parse
from paceline.menu.menu import bind


def optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """Return every optimizer of the installed torch by its lowercase name."""
    classes = inspect.getmembers(torch.optim, inspect.isclass)
    return {
        name.lower(): cls
        for name, cls in classes
        if issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
    }


def make_optimizer(text: str, parameters: Iterable[Any]) -> torch.optim.Optimizer:
    spec = parse(text)
    known = optimizers()
    if spec.word.lower() not in known:
        raise UnknownName("optimizer", spec.word, known)
    cls = known[spec.word.lower()]
    names = [name for name in inspect.signature(cls).parameters if name != "params"]
    settings = {name: _value(written) for name, written in bind(spec, names, required=[]).items()}
    _try_out(cls, settings, text)
    try:
        return cls(parameters, **settings)
    except ValueError as problem:  # an optimizer such as muon that refuses some shapes of parameters
        raise BadMember(text, why=str(problem)) from None


def _try_out(cls: Any, settings: dict[str, Any], text: str) -> None:
    """Raise if the settings are wrong for any parameter; a later error is then about the model's parameters."""
    try:
        cls([torch.nn.Parameter(torch.zeros(1, 1))], **settings)
    except (TypeError, ValueError) as problem:
        raise BadMember(text, why=str(problem)) from None


def written(optimizer: torch.optim.Optimizer) -> str:
    """Return an optimizer as text with what compose needs: its name and its momentum."""
    groups = optimizer.param_groups
    momentum = max(float(group.get("momentum") or (group.get("betas") or (0.0,))[0]) for group in groups)
    return f"{type(optimizer).__name__.lower()}(momentum={momentum:g})"


def _value(written: Spec) -> Any:
    words = {"true": True, "false": False, "none": None}
    if written.text.lower() in words:
        return words[written.text.lower()]
    for kind in (int, float, ast.literal_eval):  # numbers first: syntax trees are not for several threads
        try:
            return kind(written.text)
        except (ValueError, SyntaxError):
            continue
    return written.text
