"""Published results as data: runs, machines and figures, with notes on errors in the tables.

Rates are samples per second of the whole job. Figures stay as they were printed, even if they contradict each other.
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
    """Read the data of one published benchmark."""
    if name not in NAMES:
        raise UnknownName("published benchmark", name, NAMES)
    return tomllib.loads((files("paceline.race.published") / f"{name}.toml").read_text())
