"""Published results as data: what was run, on what, and what came out, with what is wrong in the tables.

Rates are samples per second of the whole job. Figures and contradictions are kept as they were printed.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import Any

from paceline.errors import UnknownName

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAMES = ("bluefog", "ddl_benchmarks", "dlaas", "elasticdl", "tensorpack")


def load(name: str) -> dict[str, Any]:
    """The data of one published benchmark."""
    if name not in NAMES:
        raise UnknownName("published benchmark", name, NAMES)
    return tomllib.loads((files("paceline.published") / f"{name}.toml").read_text())
