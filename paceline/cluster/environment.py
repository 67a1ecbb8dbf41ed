"""Describe the machine of a run: hardware, versions, and some settings. No secrets, and not the whole environment."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

from pydantic import ConfigDict, JsonValue, with_config
from typing_extensions import TypedDict

from paceline._version import VERSION

PACKAGES = ("torch", "numpy", "transformers", "torchvision")
VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "GLIBC_TUNABLES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "CUDA_VISIBLE_DEVICES",
)


@with_config(ConfigDict(extra="allow", strict=True))
class Environment(TypedDict, total=False):
    """The part of a record that describes versions, the machine, and the environment variables that affect speed."""

    paceline: str
    python: str
    system: str
    machine: str
    processor: str
    cores: int | None
    memory: int | float
    packages: dict[str, JsonValue] | None
    variables: dict[str, JsonValue]


def capture() -> Environment:
    """Return the description of this machine. Only the environment variables in VARIABLES are read."""
    return {
        "paceline": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _memory(),
        "packages": {name: version for name in PACKAGES if (version := installed(name))},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def installed(package: str) -> str | None:
    """Return the version of a package without importing it, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
