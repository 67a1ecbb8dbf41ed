"""The optimizers of the installed torch and their settings, read from its source code without importing torch.

With this, a wrong `--optimizer` is refused before any worker starts. Workers make the optimizer with recipe.py.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

NEVER_NEGATIVE = ("lr", "momentum", "weight_decay", "eps", "rho", "alpha", "lr_decay", "lambd")


_parsing = Lock()  # Python 3.11 fails with a SystemError if two threads make syntax trees at the same time


def optimizer_settings() -> dict[str, tuple[str, ...]]:
    """Return the settings of every optimizer by its lowercase name; empty if torch is not found."""
    with _parsing:
        return _read_settings()


@cache
def _read_settings() -> dict[str, tuple[str, ...]]:
    spec = find_spec("torch")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    classes = {node.name: node for place in places for node in _classes(Path(place) / "optim")}
    names = [name for name in classes if not name.startswith("_") and _is_optimizer(name, classes)]
    return {name.lower(): _settings(name, classes) for name in names}


def _classes(folder: Path) -> list[ast.ClassDef]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py"))]
    return [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]


def _bases(name: str, classes: dict[str, ast.ClassDef]) -> list[str]:
    return [base.id for base in classes[name].bases if isinstance(base, ast.Name)] if name in classes else []


def _is_optimizer(name: str, classes: dict[str, ast.ClassDef]) -> bool:
    return any(base == "Optimizer" or _is_optimizer(base, classes) for base in _bases(name, classes))


def _settings(name: str, classes: dict[str, ast.ClassDef]) -> tuple[str, ...]:
    """Return the parameters of a class's constructor, which may be inherited."""
    for node in classes[name].body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            return tuple(one.arg for one in arguments if one.arg not in ("self", "params"))
    return next((_settings(base, classes) for base in _bases(name, classes) if base in classes), ())
