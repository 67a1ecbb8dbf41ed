"""Say in plain words what value is wanted, instead of the words of the libraries that check values."""

from __future__ import annotations

import re

_KINDS = {
    "valid integer": ("it takes a whole number", "8"),
    "valid number": ("it takes a number", "0.5"),
    "finite number": ("it takes a finite number", "1"),
    "valid string": ("it takes a text", '"text"'),
    "valid list": ("it takes a list", "[...]"),
    "valid boolean": ("it is true or false", "true"),
    "Field required": ("it is missing", ""),
    "at least 1 item": ("at least one is needed", ""),
}
_BOUND = re.compile(r"(greater|less) than( or equal to)? ([\d.e+\-]+)")
_SIDES = {
    ("greater", True): "it is at least",
    ("greater", False): "it is above",
    ("less", True): "it is at most",
    ("less", False): "it is below",
}


def wanted(message: str) -> tuple[str, str]:
    """Return why a value is refused, and an example; a message that is not known stays, without an example."""
    bound = _BOUND.search(message)
    if bound:
        inside = bool(bound[2])
        step = 0 if inside else 1 if bound[1] == "greater" else -1
        return f"{_SIDES[bound[1], inside]} {float(bound[3]):,.15g}", f"{float(bound[3]) + step:.15g}"
    return next((known for part, known in _KINDS.items() if part in message), (message.rstrip("."), ""))
