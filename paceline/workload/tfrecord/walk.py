"""Examples with the same fields but other lengths, decoded together: one step of numpy for a step of every record.

    record 0   | tag length | tag length | name | tag length | ... | value |
    record 1   | tag length | tag length | name | tag length | ... | value  |
    record 2   | tag length  | tag length | name | tag length | ... | value    |
                 `---- open ----'            places differ from record to record, tags and names do not

The result is None if records differ in more than lengths and values, or are not in the form in which libraries write
Examples. They are decoded one by one then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SHORT = 1 << 13  # bytes of a record, in the mean: longer ones cost more to put together than to decode
_BYTES, _FLOATS, _INTEGERS = 0x0A, 0x12, 0x1A
_WIDEST = 4  # bytes of a length or number
_PADDING = bytes(16)  # a length may be looked for behind the end of the last record


class _Other(Exception):
    """The records differ in more than lengths and values."""


def walk(records: Sequence[bytes]) -> dict[str, list[Any]] | None:
    """Return for every name its values in each record, or None."""
    if sum(map(len, records)) > SHORT * len(records):
        return None
    try:
        return _Walk(records).columns()
    except _Other:
        return None


class _Walk:
    def __init__(self, records: Sequence[bytes]) -> None:
        import numpy as np

        self._np, self._records = np, records
        self._data = np.frombuffer(b"".join([*records, _PADDING]), np.uint8)
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        self._ends = lengths.cumsum()
        self._starts = self._ends - lengths

    def columns(self) -> dict[str, list[Any]]:
        at, stop = self._open(self._starts, 0x0A, self._ends)
        self._need((stop == self._ends).all())
        out: dict[str, list[Any]] = {}
        while (at < stop).any():
            self._need((at < stop).all())
            name, values, at = self._feature(at)
            out[name] = values
        return out

    def _feature(self, at: Any) -> tuple[str, list[Any], Any]:
        """Return name and values of one field, and where the next one begins."""
        at, stop = self._open(at, 0x0A, self._ends)
        at, key = self._open(at, 0x0A, stop)
        name = self._name(at, key)
        at, close = self._open(key, 0x12, stop)
        kind = int(self._data[at[0]])
        at, inside = self._open(at, kind, close)
        at, value = self._open(at, 0x0A, inside)
        self._need((stop == close).all() and (close == inside).all() and (inside == value).all())
        return name, self._values(kind, at, stop), stop

    def _open(self, at: Any, tag: int, end: Any) -> tuple[Any, Any]:
        """Return where the content of a message begins and ends in every record."""
        self._need((at < end).all() and (self._data[at] == tag).all())
        length, at = self._number(at + 1, end)
        self._need((length <= end - at).all())
        return at, at + length

    def _number(self, at: Any, end: Any) -> tuple[Any, Any]:
        """Return a number of up to four bytes, and the place after it."""
        byte = self._data[at].astype(self._np.int64)
        value, more, at = byte & 0x7F, byte >= 0x80, at + 1
        for shift in range(7, 7 * _WIDEST, 7):
            if not more.any():
                break
            byte = self._data[at].astype(self._np.int64)
            value = value + self._np.where(more, (byte & 0x7F) << shift, 0)
            at = at + more
            more = more & (byte >= 0x80)
        self._need(not more.any() and (at <= end).all())
        return value, at

    def _name(self, at: Any, key: Any) -> str:
        size = int(key[0] - at[0])
        self._need((key - at == size).all())
        letters = self._data[at[:, None] + self._np.arange(size)]
        self._need((letters == letters[0]).all())
        try:
            return letters[0].tobytes().decode()
        except UnicodeDecodeError:
            raise _Other from None

    def _values(self, kind: int, at: Any, stop: Any) -> list[Any]:
        self._need(kind in (_BYTES, _FLOATS, _INTEGERS))
        if kind == _BYTES:
            spans = zip(self._records, (at - self._starts).tolist(), (stop - self._starts).tolist(), strict=True)
            return [[record[low:high]] for record, low, high in spans]
        if kind == _FLOATS:
            return self._floats(at, stop)
        self._need((at < stop).all())
        value, after = self._number(at, stop)
        self._need((after == stop).all())  # one number in each record
        return [[number] for number in value.tolist()]

    def _floats(self, at: Any, stop: Any) -> list[Any]:
        size = int(stop[0] - at[0])
        self._need((stop - at == size).all() and not size % 4)
        raw = self._data[at[:, None] + self._np.arange(size)]
        rows: list[Any] = raw.view("<f4").tolist() if size else [[] for _ in self._records]
        return rows

    def _need(self, holds: object) -> None:
        if not holds:
            raise _Other
