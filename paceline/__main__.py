"""The entry point of `paceline` and `python -m paceline`. Ctrl-C ends it with one line, even during imports."""

from __future__ import annotations

import os
import signal

from paceline import _interruption


def main() -> None:
    """Run the command. Before and after it, Ctrl-C exits at once, because no workers are running."""
    ours = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _interruption or signal.default_int_handler)
    if ours:
        signal.signal(signal.SIGINT, _leave)  # an exception could get lost in the import of a module
    try:
        from paceline.cli import main as carry_out

        carry_out()
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interpreter is about to end


def _leave(_number: int, _frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
