"""Damage for files and values: seeded, small, and often almost right."""

import json
from copy import deepcopy

ODD = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, -1e308, 5e-324),
    *(float("nan"), float("inf"), float("-inf"), "", "x", "0", "-1", "nan", "x" * 1_000, "\x00", "é\u202e", "a\nb"),
    *([], {}, [[]], [None], [0], [-1.5], {"": None}, {"x": []}, [{}], [[[[]]]]),
)
WORDS = (
    *("grad", "allreduce", "neighbor", "ring", "exp2", "one_peer", "fusion", "topk", "feedback", "cast", "ps", "sgd"),
    *("hierarchical", "graph", "full", "star", "grid", "mgwfbp", "server", "atc", "diloco", "fake", "idx", "replay"),
    *("mb", "ratio", "every", "servers", "lr", "nan", "inf", "-1", "0", "1e999", "0x10", "9" * 30, "true", "bf16"),
    *("samples", "folder", "channels", "staleness", "4x8", "/dev/zero", "/dev/null", ".", "..", "é", "\x00", "x" * 300),
)
NUMBERS = (
    *("0", "1", "-1", "2", "3", "1.5", "nan", "inf", "-inf", "1e400", "0x7fffffffffffffff", "9223372036854775808"),
    *("1_000", "", " ", "٣", "1e-320", "true", "+1", "0b1", "1" * 5_000),
)


def bytes_of(dice, data):
    """The bytes with a few changed, cut, doubled or put in."""
    data = bytearray(data)
    for _ in range(dice.randint(0, 4)):
        at = dice.randrange(len(data) + 1)
        kind = dice.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] = dice.randrange(256)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = dice.choice(
                (b"\x00", b"\xff\xfe", b"[", b"]", b"{", b'"', b"\n", b"nan", b"-", b"9" * 40, b"#")
            )
        elif kind == 3:
            del data[at : at + dice.randint(1, 20)]
        elif kind == 4:
            data[at:at] = data[max(0, at - 50) : at]
        elif kind == 5 and data:
            data[at % len(data)] ^= 1 << dice.randrange(8)
    return bytes(data)


def tree(dice, values):
    """A JSON value with a few of its parts replaced, left out or put in."""
    values = json.loads(json.dumps(values))
    for _ in range(dice.randint(1, 3)):
        outer = _any_branch(dice, values)
        if isinstance(outer, dict) and outer:
            key = dice.choice(list(outer))
            _change(dice, outer, key)
        elif isinstance(outer, list) and outer:
            _change(dice, outer, dice.randrange(len(outer)))
    return values


def _any_branch(dice, value):
    while True:
        inner = list(value.values()) if isinstance(value, dict) else value
        below = [part for part in inner if isinstance(part, (dict, list)) and part]
        if not below or dice.random() < 0.35:
            return value
        value = dice.choice(below)


def _change(dice, outer, key):
    kind = dice.randrange(8)
    if kind == 0:
        del outer[key]
    elif kind == 1 and isinstance(outer, dict):
        outer[dice.choice(WORDS)] = deepcopy(dice.choice(ODD))
    elif kind == 2 and isinstance(outer, list):
        outer.extend(deepcopy([outer[key]] * dice.randint(1, 5)))
    else:
        outer[key] = deepcopy(dice.choice(ODD))


def text(dice, pieces=WORDS, marks="()=,  ", most=14):
    """Words and marks in any order."""
    return "".join(
        dice.choice(pieces) if dice.random() < 0.5 else dice.choice(marks) for _ in range(dice.randint(0, most))
    )


def member(dice, depth=3):
    """A member that follows the grammar, whether its words make sense or not."""
    word = dice.choice(WORDS)
    if depth == 0 or dice.random() < 0.4:
        return word
    settings = [
        f"{dice.choice(WORDS)}={member(dice, depth - 1)}" if dice.random() < 0.5 else member(dice, depth - 1)
        for _ in range(dice.randint(0, 3))
    ]
    return f"{word}({', '.join(settings)})"
