"""Make sure that SIGINT ends a rank, even where Python or an extension drops the KeyboardInterrupt.

    torch imports numpy in C++        and drops whatever is raised there: 15 of 100 interrupts of `import torch`
    destructors, callbacks, hooks     Python prints "Exception ignored in ..." and goes on (sys.unraisablehook)

A rank that goes on would make its launcher report success. So `import paceline` installs this handler in processes
that `paceline run` has started, unless they have one of their own. The KeyboardInterrupt is raised as always. If it is
dropped, the process ends by SIGINT at once, or at its next use of a name of paceline.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

VARIABLE = "PACELINE_GUARD"  # set by the launcher, see cluster/guard.py


class Interruption:
    """The handler of SIGINT. `seen` is whether a signal has come."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, number: int, frame: Any) -> None:
        self.seen = True
        signal.default_int_handler(number, frame)

    def check(self) -> None:
        """Raise KeyboardInterrupt again if it was raised before, and the script went on."""
        if self.seen:
            self.seen = False
            raise KeyboardInterrupt


def watch() -> Interruption | None:
    """Install the handler and return it; None where SIGINT is ignored, handled by others, or not for this thread."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return None
    interruption = Interruption()
    try:
        signal.signal(signal.SIGINT, interruption)
    except ValueError:  # only the main thread may
        return None
    usual = sys.unraisablehook

    def dropped(problem: Any) -> None:
        usual(problem)
        if issubclass(problem.exc_type, KeyboardInterrupt):
            end()

    sys.unraisablehook = dropped
    return interruption


def end() -> None:
    """End this process by SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def end_at_once() -> None:
    """Let SIGINT end a process of paceline itself without an exception, because its launcher names the signal."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, Interruption) and handler.seen:
        end()
    if isinstance(handler, Interruption) or handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
