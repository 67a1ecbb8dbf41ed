"""Check what works on this machine, say how to fix the rest, and remove leftovers of killed labs. Imports no torch."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.cluster.environment import installed
from paceline.cluster.leftovers import lab_leftovers, sweep
from paceline.cluster.machine import machine


@dataclass(frozen=True)
class Finding:
    """One result of the check; `state` is ok, note (something optional is missing) or bad (training cannot work)."""

    what: str
    state: str
    text: str


def examine() -> list[Finding]:
    return [*_python(), *_packages(), *_machine(), *_shared_memory(), *_leftovers()]


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok" if sys.version_info >= (3, 10) else "bad", version)


def _packages() -> Iterator[Finding]:
    torch = installed("torch")
    yield Finding("torch", "ok" if torch else "bad", torch or "missing. try: pip install torch")
    for package, use in (
        ("transformers", "bert_base, bert_large"),
        ("torchvision", "--model torchvision:NAME"),
    ):
        version = installed(package)
        yield Finding(package, "ok" if version else "note", version or f"missing: {use} will not work")
    compiler = shutil.which("g++") or shutil.which("c++")
    yield Finding("compiler", "ok" if compiler else "note", compiler or "no g++: --compile will not work")


def _machine() -> Iterator[Finding]:
    yield Finding("cores", "ok", str(len(os.sched_getaffinity(0))))
    gpus = machine().gpus
    yield Finding("GPUs", "ok" if gpus else "note", str(gpus) if gpus else "none: training on CPUs")


def _shared_memory() -> Iterator[Finding]:
    if sys.platform != "linux":
        yield Finding("shm", "note", "needs Linux; ranks will talk over gloo")
        return
    try:
        os.close(os.memfd_create("paceline"))
        yield Finding("memfd", "ok", "ranks of this host share memory without files")
    except OSError as problem:
        yield Finding("memfd", "note", f"forbidden here ({problem.strerror}); /dev/shm is used")
    folder = Path("/dev/shm")
    if not folder.is_dir():
        yield Finding("/dev/shm", "note", "there is none")
        return
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    small = free < 1 << 30
    remedy = ". try: docker run --shm-size=8g" if small else ""
    yield Finding("/dev/shm", "note" if small else "ok", f"{free / 1e9:.1f} GB free{remedy}")


def _leftovers() -> Iterator[Finding]:
    """Remove what labs of killed launchers left behind, and report what needs root to be removed."""
    before = lab_leftovers()
    sweep()
    after = lab_leftovers()
    if after:
        text = f"{len(after)} namespaces and groups of killed launchers are left. try: sudo paceline doctor"
        yield Finding("labs", "note", text)
    elif before:
        yield Finding("labs", "ok", f"removed {len(before)} namespaces and groups that killed launchers left")
