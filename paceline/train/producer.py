"""A process that makes batches for workers, for source `queue` and for `paceline data produce`."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

from paceline.errors import PacelineError, WrongCommand
from paceline.run.run import Run

SETTINGS = ("model", "classes", "image_size", "sequence_length", "seed")  # settings of a run that its producers need
_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # of mallopt in glibc


def batches_of(run: Run, batch: int, part: int = 0, parts: int = 1) -> Iterator[Any]:
    """Yield every `parts`-th batch of the source without end, counted through all epochs. All have one size.

    The short last batch of an epoch is left out. Taken in turn, the batches of all parts are those of one producer.
    """
    from paceline.train.build import workload_of
    from paceline.workload import sources
    from paceline.workload.feed import Augmented

    source = sources.MENU.make(run.source)
    if source.kind == "stream":
        raise WrongCommand(f"a producer of source {source}", why="it is a stream already", remedy="a source of files")
    samples, order = source.samples_of(workload_of(run, source)), source.order(batch, run.seed)
    whole = order.samples // batch
    if whole < parts:
        raise WrongCommand(
            f"{parts} producers of source {source}",
            why=f"it has {whole} batches of {batch}",
            remedy="fewer producers, or smaller batches",
        )
    for number in count(part, parts):
        epoch, step = divmod(number, whole)
        if isinstance(samples, Augmented):
            samples.at(run.seed, epoch)
        yield samples(order.ids(epoch, step))


def keep_memory() -> None:
    """Let this process keep the memory of batches that it has sent, for the next ones.

    Otherwise glibc returns large blocks to the system, and each page of the next batch is faulted in and zeroed again.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def main(number: int) -> int:
    """Fill the slots of a worker until the worker closes its end of the socket."""
    import torch

    from paceline.workload.stream.ring import fill

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker handles Ctrl-C, and this process ends with it
    torch.set_num_threads(1)
    keep_memory()
    line = socket.socket(fileno=number)
    spec = json.loads(line.recv(1 << 16))
    try:
        run = Run(source=spec["source"], **{name: spec[name] for name in SETTINGS})
        fill(line, batches_of(run, spec["batch"], spec["part"], spec["parts"]), spec["slots"], spec["what"])
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except PacelineError as problem:
        line.send(b"E" + str(problem).encode()[:60_000])
        return 1
    return 0


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    sys.stdout.flush()
    os._exit(code)
