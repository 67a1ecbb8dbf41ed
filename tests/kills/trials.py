"""What a campaign of kills consists of: which command, whom it hits, with which signal, and when."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

SCRIPT = """
import paceline, torch
worker = paceline.join()
torch.manual_seed(0)
model = torch.nn.Linear(64, 8)
pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
for _ in range(400):
    model(torch.randn(4, 64)).square().mean().backward()
    pace.step()
pace.close()
worker.close()
"""
TRAINING = ["--model", "mlp", "--batch-size", "4", "--steps", "10", "--warmup", "1", "--deadline", "10"]
LAB = ["--lab", "lab(hosts=2, bandwidth=1gbit)", "--cpus", "1"]
SERVER = "parameter_server"
TARGETS = ("worker", "server", "launcher")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP)
STOPPED = (0.2, 1.2)  # seconds between SIGSTOP and what follows
EARLY = (0.0, 1.5)  # seconds in which modules are loaded
LATE = (1.5, 5.0)  # seconds in which connections are made, steps are measured and results are kept
RACES = 12.0  # seconds that the cells of a race take, about


@dataclass(frozen=True)
class Trial:
    """One kill; `delay` counts from the start of the target. `after` follows a SIGSTOP."""

    number: int
    verb: str
    target: str
    signal: signal.Signals
    delay: float
    rank: int = 0
    after: signal.Signals | None = None
    pause: float = 0.0

    @property
    def deadly(self) -> signal.Signals | None:
        """The signal that ends the target, if one does."""
        last = self.after or self.signal
        return None if last == signal.SIGCONT else last

    def __str__(self) -> str:
        then = f", {self.after.name} {self.pause:.1f} s later" if self.after else ""
        whom = {"worker": f"rank {self.rank}", "server": "server 0"}.get(self.target, "the launcher")
        return f"{self.number}: {self.verb}: {self.signal.name} to {whom} after {self.delay:.2f} s{then}"

    def words(self, folder: Path) -> list[str]:
        """The command that is hit; its script, if it has one, lies in the folder."""
        served = ["--strategy", SERVER] if self.target == "server" else []
        runs = ["--runs", str(folder / "runs")]
        if self.verb == "script":
            (folder / "script.py").write_text(SCRIPT)
            return ["run", "-np", "2", *served, "--", sys.executable, str(folder / "script.py")]
        if self.verb == "race":
            strategy = SERVER if served else "allreduce"
            return ["race", "-np", "2", "--rounds", "1", "--strategies", strategy, *TRAINING, "--repeats", "5", *runs]
        lab = LAB if self.verb == "lab" else []
        return ["run", "-np", "2", *served, *lab, *TRAINING, "--repeats", "30", *runs]


def trials(seed: int, verbs: list[str]) -> Iterator[Trial]:
    """Trials without end: every mixture of command, target and signal in turn, at moments that are drawn."""
    draw = random.Random(seed)
    number = 0
    while True:
        mixture = list(product(verbs, TARGETS, SIGNALS))
        draw.shuffle(mixture)
        for verb, target, kind in mixture:
            number += 1
            yield _trial(draw, number, verb, target, kind)


def _trial(draw: random.Random, number: int, verb: str, target: str, kind: signal.Signals) -> Trial:
    after = draw.choice([signal.SIGCONT, signal.SIGKILL]) if kind == signal.SIGSTOP else None
    low, high = draw.choice([EARLY, LATE])
    long = (verb, target, low) == ("race", "launcher", LATE[0])
    delay = draw.uniform(low, RACES if long else high)
    return Trial(number, verb, target, kind, delay, draw.randrange(2), after, draw.uniform(*STOPPED))
