"""`package.module:function`: a user's own network.

The function returns a Workload, or a bare torch Module that gets synthetic images and cross-entropy.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from paceline.errors import BadMember, WorkloadError, WrongCommand
from paceline.menu.grammar import Spec
from paceline.menu.menu import bind, call, convert, parameters_of
from paceline.types import Workload

_IMAGE_DEFAULTS = {"classes": 1000, "image_size": 224}


def own(spec: Spec, flags: Mapping[str, int], fit: Mapping[str, int]) -> Workload:
    """Call the user's function with the settings that it accepts, and return a Workload."""
    function = function_of(spec.word)
    takes = _parameters(function, spec.word)
    passed = with_flags(spec, {key: value for key, value in flags.items() if key in takes})
    left = {key: value for key, value in flags.items() if key not in takes}
    made = call(function, passed, **fit)
    if isinstance(made, Workload):
        _refuse(spec.word, takes, left)
        return made
    return _of_images(spec.word, made, passed, takes, {**fit, **left})


def with_flags(spec: Spec, flags: Mapping[str, int]) -> Spec:
    """Return the member with the flags added to its settings; a setting that then occurs twice is refused later."""
    settings = tuple((key, Spec(str(value))) for key, value in flags.items())
    return Spec(spec.word, spec.args, spec.kwargs + settings, called=spec.called or bool(settings))


def function_of(word: str, kind: str = "model") -> Callable[..., Any]:
    """Import the function that a word names; `kind` is the flag in messages."""
    name, _, attribute = word.partition(":")
    module = _module(word, name, kind)
    function = getattr(module, attribute, None)
    if function is None:
        raise WrongCommand(f"{kind} {word}", why=f"{name} has no function {attribute!r}")
    if not callable(function):
        raise WrongCommand(f"{kind} {word}", why=f"{attribute} is a {type(function).__name__}, not a function")
    return function


def _module(word: str, name: str, kind: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:  # `python -m` does this, a console script does not
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise WrongCommand(
            f"{kind} {word}",
            why=f"importing {name!r} failed: {type(error).__name__}: {error}",
            remedy="start in the folder that holds the module, or put that folder into PYTHONPATH",
        ) from error


def _parameters(function: Callable[..., Any], word: str) -> Mapping[str, inspect.Parameter]:
    try:
        return parameters_of(function)
    except (TypeError, ValueError):
        raise WrongCommand(f"model {word}", why="its parameters cannot be read, as it is not Python code") from None


def _of_images(
    word: str, made: Any, spec: Spec, takes: Mapping[str, inspect.Parameter], left: Mapping[str, int]
) -> Workload:
    from torch import nn

    from paceline.workload.models._images import check_image, classifier

    if not isinstance(made, nn.Module):
        raise WorkloadError(
            f"model {word} returned a {type(made).__name__}",
            why="a model function returns a torch.nn.Module or a paceline.types.Workload",
        )
    _refuse(word, takes, {key: value for key, value in left.items() if key not in (*_IMAGE_DEFAULTS, "channels")})
    settings = {key: _setting(key, spec, takes, left) for key in _IMAGE_DEFAULTS}
    check_image(word, **settings)
    return classifier(made, **settings)


def _setting(key: str, spec: Spec, takes: Mapping[str, inspect.Parameter], left: Mapping[str, int]) -> int:
    """Return a setting of the samples: from the flag, else --model, else the function's default, else ours."""
    if key in left:
        return left[key]
    settings = bind(spec, list(takes), required=[])
    if key in settings:
        return int(convert(settings[key].text, "int", f"{spec}", key))
    default = takes[key].default if key in takes else None
    return default if isinstance(default, int) else _IMAGE_DEFAULTS[key]


def _refuse(word: str, takes: Mapping[str, inspect.Parameter], left: Mapping[str, int]) -> None:
    if left:
        accepted = f"takes {', '.join(takes)}" if takes else "takes no settings"
        raise BadMember(f"{with_flags(Spec(word), left)}", why=f"{word} {accepted}; got {', '.join(left)}")
