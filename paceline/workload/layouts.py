"""The tensors of the listed models, without building them or importing torch.

layouts.json holds, for every listed model, its unit, the flops of one sample, [name, shape] of each trainable tensor in
the order of registration, and the flops of each tensor's layer. After a change to a model:
python -m paceline.workload.layouts
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from paceline.menu.grammar import Spec, parse
from paceline.types import Slot
from paceline.workload.models import MENU

PUBLISHED = ("resnet50(bias=true, classes=10)", "mobilenet_v2(classes=10)")
FILE = Path(__file__).with_name("layouts.json")


def listed() -> tuple[str, ...]:
    """Return every model with its defaults, then the variants that published benchmarks used."""
    return (*MENU.names(), *PUBLISHED)


def layout_of(text: str) -> list[Slot] | None:
    """Return the trainable tensors of a listed model in order of registration, or None if it is not listed."""
    entry = read().get(_canonical(parse(text)))
    return None if entry is None else [_slot(name, shape) for name, shape in entry["tensors"]]


def flops_of(text: str) -> list[int] | None:
    """Return the FLOPs of a forward pass for each tensor of a listed model; 0 for a tensor whose layer has none."""
    entry = read().get(_canonical(parse(text)))
    return None if entry is None else list(entry["layers"])


def _slot(name: str, shape: Iterable[int]) -> Slot:
    sides = tuple(shape)
    return Slot(name, prod(sides), sides)


def measure() -> dict[str, Any]:
    """Return the content of layouts.json, from models on the meta device.

    It takes seconds, because nothing is computed.
    """
    return {text: _measured(text) for text in listed()}


def _measured(text: str) -> dict[str, Any]:
    import torch

    from paceline.workload.describe import flops_by_tensor
    from paceline.workload.resolve import build

    with torch.device("meta"):
        workload = build(text)
    named = workload.model.named_parameters()
    tensors = [[name, list(tensor.shape)] for name, tensor in named if tensor.requires_grad]
    flops, layers = flops_by_tensor(workload)
    return {"unit": workload.unit, "flops": flops, "tensors": tensors, "layers": layers}


def write() -> None:
    """Write layouts.json, one model per line."""
    lines = [f"{json.dumps(text)}:{json.dumps(entry, separators=(',', ':'))}" for text, entry in measure().items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@cache
def read() -> dict[str, Any]:
    """Return the content of layouts.json. Callers must not change it."""
    return json.loads(FILE.read_text())


def _canonical(spec: Spec) -> str:
    """Return one spelling for `resnet50()` and `resnet50`, and for settings in any order."""
    settings = tuple(sorted(spec.kwargs, key=lambda setting: setting[0]))
    return str(Spec(spec.word, spec.args, settings, called=bool(spec.args or settings)))


if __name__ == "__main__":
    write()
