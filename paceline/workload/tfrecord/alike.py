"""Examples that look alike: the fields of records without decoding the structure around them again and again.

    record    | structure | value | structure | value |      records of one length usually differ in their values only

The spans of the values of the first records of a length are kept together with the bytes between them. A later record
of this length whose bytes between the spans are the same has its values at the same places. Every other record is
decoded: by `_spans` in the form in which libraries write Examples, by `example.decode` in any form. All three ways give
the same fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, unpack_from
from typing import Any, NamedTuple

from paceline.workload.tfrecord.example import decode
from paceline.workload.tfrecord.walk import walk

MOST = 1 << 12  # lengths that are remembered
TWICE = 2  # records of a length that are decoded before their skeleton is known
MANY = 16  # records from which on they are decoded together
WIDEST = 4  # bytes of a number that is decoded together with others
LONG = 1 << 14  # bytes from which on a value is a view of the record instead of a copy
BYTES, FLOATS, INTEGERS = 0x0A, 0x12, 0x1A  # tags of the three kinds of lists
Fields = dict[str, Any]  # of one record
Columns = dict[str, list[Any]]  # of several records


class _Span(NamedTuple):
    """The place of a value: one value of bytes, or a packed list of numbers."""

    name: str
    kind: int
    start: int
    stop: int


class _Skeleton(NamedTuple):
    """The structure that all records of one length share."""

    cut: Callable[[bytes], tuple[bytes, ...]]  # a record to: between, value, between, value, ..., between
    between: tuple[bytes, ...]
    spans: tuple[_Span, ...]


class Alike:
    """A decoder of Examples, for the records of one data set. Raises ValueError as `example.decode` does."""

    def __init__(self) -> None:
        self._skeletons: dict[int, _Skeleton | None] = {}  # None: a length that was seen once

    def __call__(self, records: Sequence[bytes]) -> Columns:
        """Return for every name its values in each record: a list of bytes, floats or integers, or None."""
        groups: dict[int, list[int]] = {}
        for place, length in enumerate(map(len, records)):
            groups.setdefault(length, []).append(place)
        if len(groups) == 1:
            return self._alike(records)
        if len(records) >= MANY and 64 * len(groups) > len(records):
            together = walk(records)
            if together is not None:
                return together
        columns: Columns = {}
        for places in groups.values():
            for name, values in self._alike([records[place] for place in places]).items():
                column = columns.get(name)
                if column is None:
                    column = columns[name] = [None] * len(records)
                for place, value in zip(places, values):  # noqa: B905 as many by construction
                    column[place] = value
        return columns

    def _alike(self, records: Sequence[bytes]) -> Columns:
        """Decode records of one length."""
        skeleton = self._skeletons.get(len(records[0]))
        if skeleton is not None:
            pieces = list(zip(*map(skeleton.cut, records), strict=True))
            same = zip(pieces[::2], skeleton.between, strict=True)
            if all(column.count(piece) == len(records) for column, piece in same):
                columns = (_column(records, *pair) for pair in zip(skeleton.spans, pieces[1::2], strict=True))
                return dict(zip((span.name for span in skeleton.spans), columns, strict=True))
        elif len(records) > TWICE:
            first = self._each(records[:TWICE])
            if self._skeletons.get(len(records[0])) is not None:
                rest, others = self._alike(records[TWICE:]), len(records) - TWICE
                names = dict.fromkeys([*first, *rest])
                return {name: first.get(name, [None] * TWICE) + rest.get(name, [None] * others) for name in names}
        return self._each(records)

    def _each(self, records: Sequence[bytes]) -> Columns:
        """Decode records one by one."""
        rows = [self._one(record) for record in records]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def _one(self, data: bytes) -> Fields:
        spans = _spans(data)
        if spans is None:
            return decode(memoryview(data))
        if self._skeletons.get(len(data)) is None:
            self._learn(data, spans)
        return {span.name: _value(data, span) for span in spans}

    def _learn(self, data: bytes, spans: tuple[_Span, ...]) -> None:
        """Keep the skeleton of a length that is seen for the second time: many lengths never return."""
        if len(self._skeletons) >= MOST:
            self._skeletons.clear()
        self._skeletons[len(data)] = _skeleton(data, spans) if len(data) in self._skeletons else None


def _skeleton(data: bytes, spans: tuple[_Span, ...]) -> _Skeleton:
    layout, at = ["<"], 0
    for _, _, start, stop in spans:
        long = stop - start >= LONG  # an empty piece stands for it
        layout.append(f"{start - at}s{'0s' if long else ''}{stop - start}{'x' if long else 's'}")
        at = stop
    cut = Struct("".join([*layout, f"{len(data) - at}s"])).unpack
    return _Skeleton(cut, cut(data)[::2], spans)


def _column(records: Sequence[bytes], span: _Span, pieces: Sequence[bytes]) -> list[Any]:
    """Return the values of one field in all records."""
    if span.kind == BYTES and span.stop - span.start < LONG:
        return [[piece] for piece in pieces]
    if span.kind == INTEGERS and span.stop - span.start == 1:
        numbers = b"".join(pieces)
        if max(numbers) < 0x80:
            return [[number] for number in numbers]
    elif span.kind == INTEGERS and 1 < span.stop - span.start <= WIDEST and len(records) >= MANY:
        import numpy as np

        digits = np.frombuffer(b"".join(pieces), np.uint8).reshape(len(records), -1)
        if (digits[:, :-1] >= 0x80).all() and (digits[:, -1] < 0x80).all():  # one number of all these bytes
            places = np.int64(1) << np.arange(0, 7 * digits.shape[1], 7, dtype=np.int64)
            return [[number] for number in ((digits & 0x7F).astype(np.int64) @ places).tolist()]
    return [_value(record, span) for record in records]


def _value(data: bytes, span: _Span) -> list[Any]:
    _, kind, start, stop = span
    if kind == BYTES:
        return [data[start:stop] if stop - start < LONG else memoryview(data)[start:stop]]
    if kind == FLOATS:
        return list(unpack_from(f"<{(stop - start) // 4}f", data, start))
    return _integers(data, start, stop)


def _integers(data: bytes, at: int, stop: int) -> list[int]:
    out = []
    while at < stop:
        value = data[at]
        at += 1
        if value >= 0x80:
            value, at = _varint(data, at - 1, stop)
        out.append(value - (1 << 64) if value >> 63 else value)
    return out


def _spans(data: bytes) -> tuple[_Span, ...] | None:
    """Return the places of all values; None unless the Example has the usual form.

    That is: one value of bytes or one packed list in each feature, and nothing that the format does not name.
    """
    spans, end = [], len(data)
    try:
        at, stop = _open(data, 0, 0x0A, end)
        if stop != end:
            return None
        while at < end:
            at, stop = _open(data, at, 0x0A, end)
            at, key = _open(data, at, 0x0A, stop)
            name = data[at:key].decode()
            at, close = _open(data, key, 0x12, stop)
            kind = data[at]
            at, inside = _open(data, at, kind, close)
            at, value = _open(data, at, 0x0A, inside)
            if not (stop == close == inside == value) or kind not in (BYTES, FLOATS, INTEGERS):
                return None
            if kind == FLOATS and (stop - at) % 4:
                return None
            spans.append(_Span(name, kind, at, stop))
            at = stop
    except (IndexError, ValueError):
        return None  # decode() names what is wrong
    return tuple(spans)


def _open(data: bytes, at: int, tag: int, end: int) -> tuple[int, int]:
    """Return where the content of a message begins and ends. Raises ValueError if it is another one, or too long."""
    if data[at] != tag:
        raise ValueError
    length = data[at + 1]
    at += 2
    if length >= 0x80:
        length, at = _varint(data, at - 1, end)
    if length > end - at:
        raise ValueError
    return at, at + length


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number of several bytes, and the place after it."""
    value = shift = 0
    while at < end and shift <= 63:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise ValueError("a message that ends inside a number, or one of more than 64 bits")
