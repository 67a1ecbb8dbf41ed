"""A limit for the depth of nested JSON, because a file with a thousand levels would break recursive code."""

from __future__ import annotations

DEEPEST = 64  # lists and objects inside each other; records have fewer than ten
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def is_too_deep(text: bytes, value: object) -> bool:
    """Return True if a value and the JSON text that it was read from are nested deeper than a record can be."""
    return _may_be_deep(text) and _is_deep(value)


def _may_be_deep(text: bytes) -> bool:
    """Count brackets only, one level at a time. It is quick, and wrong only if strings contain brackets."""
    brackets = text.translate(None, _NO_BRACKETS)
    for _ in range(DEEPEST):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return True


def _is_deep(value: object) -> bool:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(DEEPEST):
        if not level:
            return False
        inner = [part for outer in level for part in (outer.values() if isinstance(outer, dict) else outer)]
        level = [part for part in inner if isinstance(part, (dict, list))]
    return True
