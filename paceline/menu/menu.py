"""A menu maps the words of a family of members to the classes behind them, which are imported on first use.

A member is a frozen dataclass; its fields are the settings that it accepts on the command line:

    class Fusion(Member):      fusion        fusion(4)        fusion(mb=4)
        mb: float = 25
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar

from paceline.errors import BadMember, UnknownName, short
from paceline.menu.grammar import Spec, parse, quoted


class Member:
    """Base class of every member of a menu. str() gives its command-line form."""

    name: ClassVar[str]

    def __str__(self) -> str:
        shown = [f"{f.name}={_write(getattr(self, f.name))}" for f in _settings_of(self) if _differs(self, f)]
        return f"{self.name}({', '.join(shown)})" if shown else self.name


@dataclass(frozen=True)
class Menu:
    """The members of one axis: each word with its location "module:class", and aliases of words."""

    axis: str
    members: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    package: str | None = None  # the package of members whose location starts with a dot

    def names(self) -> tuple[str, ...]:
        return tuple(self.members)

    def check(self, word: str) -> str:
        """Return the word with aliases resolved. Raises UnknownName if it is not on the menu."""
        word = self.aliases.get(word, word)
        if word not in self.members:
            raise UnknownName(self.axis, word, [*self.members, *self.aliases])
        return word

    def load(self, word: str) -> Any:
        """Import the class or function of a word."""
        module, _, attribute = self.members[self.check(word)].partition(":")
        return getattr(importlib.import_module(module, self.package), attribute)

    def make(self, text: str | Spec) -> Any:
        """Create the member that a text describes, with every setting checked."""
        spec = parse(text) if isinstance(text, str) else text
        return make(self.load(spec.word), spec)


def nested(menu: str, **kwargs: Any) -> Any:
    """Return a dataclass field that holds a member of the menu at "module:NAME"."""
    return field(metadata={"menu": menu}, **kwargs)


def make(cls: type, spec: Spec) -> Any:
    """Create a member from its parsed form."""
    known = {f.name: f for f in fields(cls) if f.init}
    settings = bind(spec, list(known), required=[k for k, f in known.items() if _required(f)])
    return cls(**{key: _convert(spec, known[key], value) for key, value in settings.items()})


def bind(spec: Spec, names: list[str], required: list[str]) -> dict[str, Spec]:
    """Match the written settings with parameter names, positional ones first."""
    takes = f"takes {', '.join(names)}" if names else "takes no settings"
    if len(spec.args) > len(names):
        raise BadMember(f"{spec}", why=f"{spec.word} {takes}; got {len(spec.args)} values")
    settings = dict(zip(names, spec.args, strict=False))
    for key, value in spec.kwargs:
        if key not in names:
            raise BadMember(f"{spec}", why=f"{spec.word} {takes}; got {short(key)}")
        if key in settings:
            raise BadMember(f"{spec}", why=f"{key} is given twice")
        settings[key] = value
    lacking = [name for name in required if name not in settings]
    if lacking:
        raise BadMember(f"{spec}", why=f"{spec.word} needs {', '.join(lacking)}")
    return settings


def call(function: Callable[..., Any], spec: Spec, **defaults: Any) -> Any:
    """Call a function with the settings of a spec and with those `defaults` that the function accepts."""
    parameters = parameters_of(function)
    required = [n for n, p in parameters.items() if p.default is p.empty and n not in defaults]
    settings = bind(spec, list(parameters), required)
    values = {key: value for key, value in defaults.items() if key in parameters}
    for key, written in settings.items():
        values[key] = convert(written.text, _kind_of(parameters[key]), f"{spec}", key)
    return function(**values)


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a function, without *args and **kwargs."""
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {n: p for n, p in inspect.signature(function).parameters.items() if p.kind not in unnamed}


def convert(text: str, kind: str, what: str, key: str) -> Any:
    """Convert text to the type that the annotation `kind` names: int, float, bool or str."""
    kind = kind.replace(" | None", "")
    try:
        if kind == "bool":
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        if kind == "int":
            return _bounded(int(text))
        if kind == "float":
            return _bounded(float(text))
    except (ValueError, KeyError):
        raise BadMember(what, why=f"{key} takes {_SPOKEN[kind]}; got {short(text)}") from None
    return text


def _bounded(value: Any) -> Any:
    """Return the number. Raises ValueError for nan and for integers beyond MOST."""
    if value != value or (isinstance(value, int) and abs(value) > MOST):
        raise ValueError(value)
    return value


MOST = 1 << 53  # up to here a float represents every integer


_SPOKEN = {"bool": "true or false", "int": "a whole number", "float": "a number"}


def _convert(spec: Spec, slot: Field[Any], value: Spec) -> Any:
    menu = slot.metadata.get("menu")
    if menu:
        module, _, attribute = menu.partition(":")
        return getattr(importlib.import_module(module), attribute).make(value)
    return convert(value.text, _kind(slot.type), f"{spec}", slot.name)


def _kind(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _kind_of(parameter: inspect.Parameter) -> str:
    """Return the annotation of a parameter, or else the type of its default."""
    bare = parameter.annotation is parameter.empty
    return _kind(type(parameter.default) if bare else parameter.annotation)


def _required(slot: Field[Any]) -> bool:
    return slot.default is MISSING and slot.default_factory is MISSING


def _settings_of(member: Any) -> list[Field[Any]]:
    return [f for f in fields(member) if f.init]


def _differs(member: Any, slot: Field[Any]) -> bool:
    return _required(slot) or getattr(member, slot.name) != slot.default


def _write(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return quoted(value) if isinstance(value, str) and not _is_member(value) else str(value)


def _is_member(text: str) -> bool:
    """Return whether a text is a member with settings, such as `neighbor(ring)`. It then needs no quotes."""
    try:
        return parse(text).called and str(parse(text)) == text
    except BadMember:
        return False
