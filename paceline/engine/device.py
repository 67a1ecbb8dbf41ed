"""Devices: compute and communication are two lanes that wait for each other without blocking the host.

    compute        ... backward ...  mark            ...            rejoin   update
                                        \\                          /
    communication                        sending(mark): all-reduce

On a CPU there is one lane and nothing to do. On CUDA the lanes are streams and marks are events. RecordingDevice
records the calls, so that tests can check their order without a GPU. The CUDA lane has not run on a GPU yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch


class Device(Protocol):
    kind: str

    def mark(self) -> Any:
        """Return a mark on the compute lane, after everything enqueued so far."""

    def sending(self, mark: Any) -> contextlib.AbstractContextManager[None]:
        """Return a context. Work that is started inside it runs on the communication lane, after the mark."""

    def rejoin(self) -> None:
        """Make the compute lane wait for everything that is enqueued on the communication lane."""

    def place(self, batch: Any) -> Any:
        """Return a batch on this device."""

    def place_model(self, model: Any) -> Any: ...


class CpuDevice:
    kind = "cpu"

    def mark(self) -> None:
        return None

    def sending(self, mark: None) -> contextlib.AbstractContextManager[None]:
        return _NOTHING

    def rejoin(self) -> None:
        pass

    def place(self, batch: Any) -> Any:
        return batch

    def place_model(self, model: Any) -> Any:
        return model


_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


class CudaDevice:
    kind = "cuda"

    def __init__(self, index: int) -> None:
        torch.cuda.set_device(index)
        self._target = torch.device("cuda", index)
        self._lane = torch.cuda.Stream(self._target)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record()
        return event

    @contextlib.contextmanager
    def sending(self, mark: torch.cuda.Event) -> Iterator[None]:
        self._lane.wait_event(mark)
        with torch.cuda.stream(self._lane):
            yield

    def rejoin(self) -> None:
        event = torch.cuda.Event()
        event.record(self._lane)
        torch.cuda.current_stream().wait_event(event)

    def place(self, batch: Any) -> Any:
        return move(batch, self._target)

    def place_model(self, model: Any) -> Any:
        return model.to(self._target)


class RecordingDevice:
    """A device for tests. It computes on the CPU and records all calls."""

    kind = "recording"

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self._marks = 0

    def mark(self) -> int:
        self._marks += 1
        self.calls.append(("mark", self._marks))
        return self._marks

    @contextlib.contextmanager
    def sending(self, mark: int) -> Iterator[None]:
        self.calls.append(("wait for mark", mark))
        yield
        self.calls.append(("sent", mark))

    def rejoin(self) -> None:
        self.calls.append(("rejoin", self._marks))

    def place(self, batch: Any) -> Any:
        self.calls.append(("place", 0))
        return batch

    def place_model(self, model: Any) -> Any:
        return model


def move(batch: Any, target: torch.device) -> Any:
    """Return a batch with all its tensors on a device. Dicts, lists and tuples may be nested."""
    if isinstance(batch, torch.Tensor):
        return batch.to(target, non_blocking=True)
    if isinstance(batch, dict):
        return {key: move(value, target) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(move(value, target) for value in batch)
    return batch


def find(index: int = 0) -> Device:
    """Return the device to train on: the GPU with this index if CUDA is available, else the CPU."""
    return CudaDevice(index) if torch.cuda.is_available() else CpuDevice()
