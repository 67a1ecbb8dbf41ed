"""The state of a training as bytes, without pickle: a JSON header, followed by raw tensors.

    offset 0    PACESNAP                     8 bytes
    8           length, checksum of header   two 8-byte integers, little-endian
    24          header                       JSON: {"format": 1, "tree": ..., "tensors": [[dtype, shape, checksum]]}
    then        the tensors                  one after another, little-endian, as many bytes as the header announces

    tree        null, true, 1, 0.5, "text"   as they are
                {"l": [...]}  {"u": [...]}   a list, a tuple
                {"d": [[key, value], ...]}   a dict, whose keys may be numbers
                {"t": k}                     tensor number k
                {"f": "nan"}  {"b": "..."}   a float that JSON lacks, bytes in hexadecimal

Checkpoint files, sockets and shared memory use this one format. The reader passes the largest allowed size. Memory
is allocated as bytes arrive, so a damaged header cannot make the reader allocate more than was sent.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from paceline.errors import DamagedFile, NoRoom, PacelineError, WrongCommand
from paceline.files.read import open_file

if TYPE_CHECKING:
    from torch import Tensor

MAGIC = b"PACESNAP"
FORMAT = 1
LONGEST_HEADER = 64 << 20  # bytes
DEEPEST = 100  # nested values
ALIGNED = 64  # bytes between which tensors begin in memory
_PIECE = 1 << 22
_START = len(MAGIC) + 16
DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool"),
    *("uint8", "int8", "int16", "int32", "int64"),
)


class Snapshot:
    """A state of nested dicts, lists, tuples, numbers, texts, bytes and tensors."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def write(self, stream: IO[bytes]) -> int:
        """Write to any binary stream; return the number of bytes."""
        tensors: list[Tensor] = []
        tree = _encode(self.state, tensors, 0)
        rows = [[_dtype_of(tensor), list(tensor.shape), _checksum(tensor)] for tensor in tensors]
        header = json.dumps({"format": FORMAT, "tree": tree, "tensors": rows}, allow_nan=False).encode()
        if len(header) > LONGEST_HEADER:
            raise WrongCommand(
                "a snapshot", why=f"its header has {len(header):,} bytes, at most {LONGEST_HEADER:,} fit"
            )
        stream.write(MAGIC + len(header).to_bytes(8, "little") + zlib.crc32(header).to_bytes(8, "little"))
        stream.write(header)
        for tensor in tensors:
            for piece in _pieces(tensor):
                stream.write(piece)
        return _START + len(header) + sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @classmethod
    def read(cls, stream: IO[bytes], most: int, name: object = "the snapshot") -> Snapshot:
        """Read from any binary stream. Raises DamagedFile for damage, and for a snapshot of more than `most` bytes."""
        reader = _Reader(stream, most, name)
        start = reader.take(_START)
        if start[: len(MAGIC)] != MAGIC:
            raise DamagedFile(name, 0, why="it does not begin like a snapshot", remedy="the path of a checkpoint")
        length = int.from_bytes(start[8:16], "little")
        if length > min(LONGEST_HEADER, most):
            raise DamagedFile(name, 8, why=f"it announces a header of {length:,} bytes")
        header = reader.take(length)
        if zlib.crc32(header) != int.from_bytes(start[16:24], "little"):
            raise DamagedFile(name, _START, why="its header does not have the checksum that was written")
        try:
            content = json.loads(bytes(header))
            tree, rows = _checked(content)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as problem:
            raise DamagedFile(name, _START, why=f"its header cannot be read ({problem})") from None
        sizes = [_nbytes(dtype, shape) for dtype, shape, _ in rows]
        if sum(sizes) > most - reader.offset:
            raise DamagedFile(name, _START, why=f"it announces {sum(sizes):,} bytes of tensors, more than there are")
        tensors = [reader.tensor(*row, nbytes) for row, nbytes in zip(rows, sizes, strict=True)]
        try:
            return cls(_decode(tree, tensors, 0))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as problem:
            raise DamagedFile(name, _START, why=f"its header cannot be read ({problem})") from None

    def outline(self) -> tuple[bytes, list[Tensor]]:
        """Return the header without checksums, and the tensors, for memory that `fill` and `unpacked` share."""
        tensors: list[Tensor] = []
        tree = _encode(self.state, tensors, 0)
        rows = [[_dtype_of(tensor), list(tensor.shape), 0] for tensor in tensors]
        return json.dumps({"format": FORMAT, "tree": tree, "tensors": rows}, allow_nan=False).encode(), tensors

    @classmethod
    def unpacked(cls, header: bytes, memory: Tensor, name: object = "the snapshot") -> Snapshot:
        """Read tensors from the memory that another process has filled. They get memory of their own."""
        import torch

        try:
            tree, rows = _checked(json.loads(header))
            sizes = [_nbytes(dtype, shape) for dtype, shape, _ in rows]
            places = _places(sizes)
            if (places[-1] if places else 0) > memory.numel():
                raise ValueError(f"it announces {sum(sizes):,} bytes of tensors, and there are {memory.numel():,}")
            tensors = [
                memory[start : start + nbytes].clone().view(getattr(torch, dtype)).view(shape)
                for (dtype, shape, _), start, nbytes in zip(rows, places, sizes, strict=False)
            ]
            return cls(_decode(tree, tensors, 0))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as problem:
            raise DamagedFile(name, 0, why=f"its header cannot be read ({problem})") from None

    def save(self, path: Path) -> int:
        """Write a file atomically: a temporary file beside it, flushed to disk, then renamed. Return its size."""
        try:
            with atomic(path) as stream:
                return self.write(stream)
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise NoRoom(
                    f"{path} was not written", why=os.strerror(problem.errno), remedy="free space, or another folder"
                ) from None
            raise PacelineError(f"{path} was not written", why=problem.strerror or str(problem)) from None

    @classmethod
    def load(cls, path: Path) -> Snapshot:
        """Read a file. Every DamagedFile error names the file and the offset."""
        with open_file(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            snapshot = cls.read(stream, size, path)
            if stream.tell() != size:
                raise DamagedFile(path, stream.tell(), why="it goes on after the end that its header announces")
            return snapshot


def room_for(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of memory that `fill` needs for these tensors."""
    places = _places([tensor.nbytes for tensor in tensors])
    return places[-1] if places else 0


def fill(memory: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy tensors into a vector of bytes, where `Snapshot.unpacked` finds them."""
    import torch

    for tensor, start in zip(tensors, _places([tensor.nbytes for tensor in tensors]), strict=False):
        if tensor.numel():
            memory[start : start + tensor.nbytes].copy_(tensor.reshape(-1).view(torch.uint8))


def _places(sizes: Sequence[int]) -> list[int]:
    """Return where tensors of these sizes begin, on boundaries of ALIGNED bytes, and where the last one ends."""
    return list(accumulate((size + -size % ALIGNED for size in sizes), initial=0)) if sizes else []


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing. It replaces `path` when the block ends; if the block raises, it is deleted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A random name: in containers the process that was killed while writing often had the same pid.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.draft")
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(number, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # sync the folder as well, so that the new name is on disk
    finally:
        os.close(folder)


def check_state(state: Any) -> None:
    """Raise WrongCommand if a snapshot of this state could not be written."""
    for tensor in _flat(state):
        _dtype_of(tensor)


def _flat(state: Any) -> list[Tensor]:
    tensors: list[Tensor] = []
    _encode(state, tensors, 0)
    return tensors


def _encode(value: Any, tensors: list[Tensor], depth: int) -> Any:
    import torch

    if depth > DEEPEST:
        raise WrongCommand("a snapshot", why=f"its state is nested deeper than {DEEPEST}")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"f": str(float(value))}
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach().to("cpu").contiguous())
        return {"t": len(tensors) - 1}
    if isinstance(value, (bytes, bytearray)):
        return {"b": bytes(value).hex()}
    if isinstance(value, dict):
        return {"d": [[_encode(k, tensors, depth + 1), _encode(v, tensors, depth + 1)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"lu"[isinstance(value, tuple)]: [_encode(part, tensors, depth + 1) for part in value]}
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a number of numpy
        return _encode(value.item(), tensors, depth)
    raise WrongCommand(
        f"a snapshot with a {type(value).__name__}",
        why="it holds dicts, lists, tuples, numbers, texts, bytes and tensors, so that reading one runs no code",
    )


def _decode(node: Any, tensors: list[Tensor], depth: int) -> Any:
    if not isinstance(node, dict):
        if isinstance(node, list):
            raise ValueError("a bare list")
        return node
    if depth > DEEPEST:
        raise ValueError(f"nested deeper than {DEEPEST}")
    ((kind, value),) = node.items()
    if kind == "t":
        if not isinstance(value, int) or value < 0:
            raise ValueError(f"tensor {value}")
        return tensors[value]
    if kind == "f":
        return float(value)
    if kind == "b":
        return bytes.fromhex(value)
    if kind == "d":
        return {_decode(k, tensors, depth + 1): _decode(v, tensors, depth + 1) for k, v in value}
    parts = [_decode(part, tensors, depth + 1) for part in value]
    return {"l": list, "u": tuple}[kind](parts)


def _checked(content: Any) -> tuple[Any, list[tuple[str, list[int], int]]]:
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']}, and this version reads {FORMAT}")
    rows = [(str(dtype), [int(size) for size in shape], int(check)) for dtype, shape, check in content["tensors"]]
    for dtype, shape, _ in rows:
        count = math.prod(max(1, size) for size in shape)  # an empty tensor has strides, too, and they must be numbers
        if dtype not in DTYPES or len(shape) > 64 or any(size < 0 for size in shape) or count >= 1 << 48:
            raise ValueError(f"a tensor of {dtype} {shape}")
    return content["tree"], rows


def _nbytes(dtype: str, shape: list[int]) -> int:
    import torch

    return math.prod(shape) * int(getattr(torch, dtype).itemsize)


def _dtype_of(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise WrongCommand(f"a snapshot with a tensor of {name}", why=f"it holds {', '.join(DTYPES)}")
    return name


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    import torch

    flat = tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")
    for start in range(0, len(flat), _PIECE):
        yield flat[start : start + _PIECE]


def _checksum(tensor: Tensor) -> int:
    value = 0
    for piece in _pieces(tensor):
        value = zlib.crc32(piece, value)
    return value


class _Reader:
    """Reads exact numbers of bytes, piece by piece, and keeps the offset for error messages."""

    def __init__(self, stream: IO[bytes], most: int, name: object) -> None:
        self._stream, self._most, self._name, self.offset = stream, most, name, 0

    def take(self, count: int) -> bytearray:
        content = bytearray()
        while len(content) < count:
            piece = self._stream.read(min(_PIECE, count - len(content)))
            if not piece:
                lacking = count - len(content)
                raise DamagedFile(self._name, self.offset, why=f"it ends there, and {lacking:,} more bytes were due")
            content += piece
            self.offset += len(piece)
        return content

    def tensor(self, dtype: str, shape: list[int], checksum: int, nbytes: int) -> Tensor:
        import torch

        start, content = self.offset, self.take(nbytes)
        if zlib.crc32(content) != checksum:
            raise DamagedFile(self._name, start, why="a tensor there does not have the checksum that was written")
        kind = getattr(torch, dtype)
        if not nbytes:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(content, dtype=torch.uint8).view(kind).view(shape)
