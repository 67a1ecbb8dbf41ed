"""Older names of fields of Run, which old records and scripts have."""

from __future__ import annotations

from typing import Any

OLDER = {"compress": "compressor"}


def renamed(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with older names replaced; a value under the older name replaces None under the new one."""
    for older, name in OLDER.items():
        if older in values:
            rest = {key: value for key, value in values.items() if key != older}
            if rest.get(name) not in (None, values[older]) and values[older] is not None:
                raise ValueError(f"{older} is an older name of {name}: give one of them")
            values = {**rest, name: rest.get(name) if values[older] is None else values[older]}
    return values
