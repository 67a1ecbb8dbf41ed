"""Where compute and communication run beside each other: two lanes that wait for each other, never the host.

    compute        ... backward ...  mark            ...            rejoin   update
                                        \\                          /
    communication                        sending(mark): all-reduce

On a CPU there is one lane and nothing to do. On CUDA the lanes are streams, marks are events. The fake writes
down what was asked, so that tests can assert the order without a GPU. The CUDA lane has not run on a GPU yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch


class Device(Protocol):
    kind: str

    def mark(self) -> Any:
        """A point on the compute lane, after everything enqueued so far."""

    def sending(self, mark: Any) -> contextlib.AbstractContextManager[None]:
        """Run the work that is started inside on the communication lane, after the mark."""

    def rejoin(self) -> None:
        """The compute lane goes on only after what the communication lane has enqueued so far."""

    def place(self, batch: Any) -> Any:
        """A batch on this device."""

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
    """Computes on the CPU and writes down what a device was asked, for tests."""

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
    """Tensors of a batch, however nested, on a device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(target, non_blocking=True)
    if isinstance(batch, dict):
        return {key: move(value, target) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(move(value, target) for value in batch)
    return batch


def find(index: int = 0) -> Device:
    """The device that this process should train on."""
    return CudaDevice(index) if torch.cuda.is_available() else CpuDevice()
