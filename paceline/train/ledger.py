"""What a member of an elastic job has computed and committed, written down for the oracles of `paceline chaos`.

PACELINE_LEDGER=FOLDER makes every member write FOLDER/ledger-MEMBER.jsonl; elastic/oracles.py judges the lines.

    {"what": "shard", "at": T, "step": 7, "generation": 2, "shard": 3}      a shard was computed
    {"what": "commit", "at": T, "step": 7, "generation": 2, "hash": H}      a step was applied; H is of the whole state
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

VARIABLE = "PACELINE_LEDGER"


class Ledger:
    """The lines of one member. Files are new: nothing that was there before is written to."""

    def __init__(self, folder: Path, member: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._file = (folder / f"ledger-{member}.jsonl").open("x", buffering=1)
        self._model, self._optimizer = model, optimizer

    def shard(self, step: int, generation: int, shard: int) -> None:
        self._write("shard", step=step, generation=generation, shard=shard)

    def commit(self, step: int, generation: int) -> None:
        self._write("commit", step=step, generation=generation, hash=self._digest())

    def _write(self, what: str, **values: Any) -> None:
        self._file.write(json.dumps({"what": what, "at": time.time(), **values}) + "\n")

    def _digest(self) -> str:
        digest = hashlib.blake2b(digest_size=10)
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()["state"]}
        for tensor in tensors_of(state):
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested dictionaries, in the order of their keys."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from tensors_of(value[key])


def checksum_of(state: Any) -> int:
    """Return 32 bits that stand for the tensors of a state."""
    total = 1
    for tensor in tensors_of(state):
        raw: Any = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        total = zlib.crc32(raw, total)
    return total


def ledger_of(
    environ: Mapping[str, str], member: str, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Ledger | None:
    """Return the ledger that the environment asks for, or None."""
    folder = environ.get(VARIABLE)
    return Ledger(Path(folder), member, model, optimizer) if folder else None
