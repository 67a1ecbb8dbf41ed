"""Start the coordinator of an elastic job: python -m paceline.elastic FOLDER --start 4 --max 8."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from paceline.elastic.coordinator import Coordinator, log
from paceline.elastic.door import lock_folder
from paceline.elastic.protocol import Registry
from paceline.elastic.recoveries import summary_of


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="paceline.elastic")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--start", type=int, required=True)
    parser.add_argument("--min", type=int, default=1)
    parser.add_argument("--max", type=int, default=8)
    parser.add_argument("--task", type=int, default=0)
    parser.add_argument("--interface", default="127.0.0.1")
    parser.add_argument("--rule", choices=("shm", "tcp"), default="shm")
    chosen = parser.parse_args(words)
    logging.basicConfig(format="paceline coordinator: %(message)s")
    os.umask(0o077)
    lock = lock_folder(chosen.folder)
    numbers = {"start": chosen.start, "minimum": chosen.min, "maximum": chosen.max, "task": chosen.task}
    registry = Registry(**numbers, rule=chosen.rule)
    coordinator = Coordinator(chosen.folder, registry, interface=chosen.interface)
    address = (chosen.folder / "address").read_text().strip()
    command = f"paceline join {address} --token-file {chosen.folder / 'token'} -- python SCRIPT"
    print(f"paceline: {command} adds a worker to this job", file=sys.stderr, flush=True)
    try:
        coordinator.serve()
        if summary := summary_of(coordinator.journal.incidents()):
            print(f"paceline: {summary}", file=sys.stderr, flush=True)
    finally:
        coordinator.close()
        os.close(lock)
    if coordinator.deserted:
        log.error("all members left after %d steps, before training was complete", registry.watermark)
        sys.exit(1)


if __name__ == "__main__":
    main()
