"""Notes: short texts that describe the calls of ranks, so that different calls are never combined.

Ranks compare notes byte by byte, and error messages print them:

    all_sum of 4 float32, allreduce          broadcast of 10 float32, chunk 3 at step 17, from rank 0
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import TYPE_CHECKING

from paceline.errors import CallMismatch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NOTES = 512  # notes kept per rank, for ranks that have not compared them yet
LENGTH = 120  # bytes of a note
CLOSED = "close"  # the note of a rank that makes no more calls
GAVE_UP = "give up"  # the note of a rank that leaves in the middle of a step
STEP = "step"  # the note of a rank before the exchanges of a step

REMEDY = "make every call on all ranks, in one order and with equal shapes, and none under `if worker.first`"


class SequencePart(str):
    """The key of a call that is not compared by itself, because ranks have compared the operation it is part of."""


def tensor_text(tensor: Tensor, start: int = 0) -> str:
    """Return what ranks must agree on for a tensor: its length, its dtype, and for a piece the element it starts at."""
    return _length_text(tensor.numel(), tensor.dtype, start)


@lru_cache(maxsize=1024)
def _length_text(numel: int, dtype: torch.dtype, start: int) -> str:
    name = str(dtype).removeprefix("torch.")
    return f"{numel} {name} from {start}" if start else f"{numel} {name}"


def call_text(verb: str, length: str, key: object) -> bytes:
    """Return the note of a call, padded with spaces. A note that is too long is cut and ends with a checksum."""
    return _known_text(verb, length, key) if type(key) is str else _text(verb, length, key)


def _text(verb: str, length: str, key: object) -> bytes:
    text = (f"{verb} of {length}, {key}" if length else f"{verb} {key}").encode()
    if len(text) <= LENGTH:
        return text.ljust(LENGTH)
    return text[: LENGTH - 9] + b" %08x" % zlib.crc32(text)


_known_text = lru_cache(maxsize=1024)(_text)  # a program repeats its calls; keys of steps are new each time


def is_closed(text: bytes) -> bool:
    """Return whether a note says that its rank makes no more calls."""
    return _shown(text) == CLOSED


def mismatch(number: int, mine: tuple[str, bytes], theirs: tuple[str, bytes], peer: int) -> CallMismatch:
    """Return the error for two ranks whose calls differ at operation `number`. Each rank is a pair (name, note)."""
    closed = [name for name, text in (mine, theirs) if is_closed(text)]
    if closed:
        caller, text = theirs if mine[0] in closed else mine
        ended = f"{closed[0]} ended after {number} operations"
        return CallMismatch(
            f"{caller} made more calls than {closed[0]}",
            why=f"{ended}, and operation {number + 1} of {caller} is {_shown(text)}",
            remedy=REMEDY,
            rank=peer,
        )
    (first, own), (second, text) = mine, theirs
    return CallMismatch(
        f"{first} and {second} make different calls",
        why=f"operation {number + 1} is {_shown(own)} on {first} and {_shown(text)} on {second}",
        remedy=REMEDY,
        rank=peer,
    )


def _shown(text: bytes) -> str:
    return text.decode(errors="replace").rstrip(", ")
