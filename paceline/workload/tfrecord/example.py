"""tf.train.Example: named fields of bytes, floats or integers, in the encoding of protocol buffers.

    Example { Features { map<string, Feature { bytes_list | float_list | int64_list }> } }

This file writes and reads them without the protobuf package. Lengths are checked against the available bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

_FLOAT = Struct("<f")
Value = bytes | Sequence[int] | Sequence[float]


def encode(fields: Mapping[str, Value]) -> bytes:
    """Return an Example as bytes. A field of bytes has one value; a field of floats or integers has a list."""
    entries = []
    for name, value in fields.items():
        key = name.encode()
        feature = _feature(value)
        entry = b"\x0a" + _varint(len(key)) + key + b"\x12" + _varint(len(feature)) + feature
        entries.append(b"\x0a" + _varint(len(entry)) + entry)
    features = b"".join(entries)
    return b"\x0a" + _varint(len(features)) + features


def _feature(value: Value) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        inner, kind = b"\x0a" + _varint(len(value)) + bytes(value), b"\x0a"
    elif value and isinstance(value[0], float):
        packed = b"".join(_FLOAT.pack(number) for number in value)
        inner, kind = b"\x0a" + _varint(len(packed)) + packed, b"\x12"
    else:
        packed = b"".join(_varint(int(number) & (1 << 64) - 1) for number in value)
        inner, kind = b"\x0a" + _varint(len(packed)) + packed, b"\x1a"
    return kind + _varint(len(inner)) + inner


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode(data: memoryview) -> dict[str, Any]:
    """Return the fields of an Example; each is a list of memoryviews, floats or integers.

    Raises ValueError if it is damaged.
    """
    fields: dict[str, Any] = {}
    for number, features in _messages(data):
        if number == 1:
            for inner, entry in _messages(features):
                if inner == 1:
                    name, value = "", None
                    for part, content in _messages(entry):
                        if part == 1:
                            name = str(content, "utf-8")
                        elif part == 2:
                            value = content
                    fields[name] = [] if value is None else _values(value)
    return fields


def _values(feature: memoryview) -> list[Any]:
    out: list[Any] = []
    for kind, content in _messages(feature):
        if kind == 1:
            out += [part for number, part in _messages(content) if number == 1]
        elif kind == 2:
            out += _floats(content)
        elif kind == 3:
            out += _integers(content)
    return out


def _floats(content: memoryview) -> list[float]:
    out: list[float] = []
    at = 0
    while at < len(content):
        tag, at = _number(content, at)
        if tag == 0x0A:
            length, at = _number(content, at)
            if length > len(content) - at or length % 4:
                raise ValueError("a list of floats that does not fit")
            out += [number for (number,) in _FLOAT.iter_unpack(content[at : at + length])]
            at += length
        elif tag == 0x0D and at + 4 <= len(content):
            out.append(_FLOAT.unpack_from(content, at)[0])
            at += 4
        else:
            raise ValueError("a list of floats with something else inside")
    return out


def _integers(content: memoryview) -> list[int]:
    out, at, end = [], 0, len(content)
    while at < end:
        tag, at = _number(content, at)
        if tag == 0x0A:
            length, at = _number(content, at)
            stop = at + length
            if stop > end:
                raise ValueError("a list of integers that does not fit")
            while at < stop:
                value, at = _number(content, at)
                out.append(value - (1 << 64) if value >> 63 else value)
        elif tag == 0x08:
            value, at = _number(content, at)
            out.append(value - (1 << 64) if value >> 63 else value)
        else:
            raise ValueError("a list of integers with something else inside")
    return out


def _messages(data: memoryview) -> list[tuple[int, memoryview]]:
    """Return the length-delimited fields of a message; others are skipped."""
    out, at, end = [], 0, len(data)
    while at < end:
        tag, at = _number(data, at)
        if tag & 7 == 2:
            length, at = _number(data, at)
            if length > end - at:
                raise ValueError("a field that is longer than its message")
            out.append((tag >> 3, data[at : at + length]))
            at += length
        elif tag & 7 == 0:
            _, at = _number(data, at)
        elif tag & 7 in (1, 5):
            at += 8 if tag & 7 == 1 else 4
        else:
            raise ValueError(f"a field of kind {tag & 7}")
    return out


def _number(data: memoryview, at: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it."""
    try:
        byte = data[at]
        if byte < 0x80:
            return byte, at + 1
        value, shift = byte & 0x7F, 7
        while True:
            at += 1
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (1 << 64) - 1, at + 1
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")
    except IndexError:
        raise ValueError("a message that ends inside a number") from None
