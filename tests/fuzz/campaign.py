"""Seeded cases over all targets: python -m tests.fuzz.campaign [--cases 5000] [--seed 1] [--only TARGET]."""

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from paceline.errors import PacelineError
from tests.fuzz.targets import TARGETS

SECONDS = 2.0  # of processor time in a case, at most
WAIT = 10.0  # of waiting in a case: other work on the machine is no hang
GROWTH = 200 << 20  # bytes of the process, at most


class Hang(BaseException):
    """A case that takes too long."""


@dataclass
class Result:
    accepted: Counter = field(default_factory=Counter)
    refused: Counter = field(default_factory=Counter)
    failures: list = field(default_factory=list)
    slowest: float = 0.0
    growth: int = 0

    @property
    def good(self):
        return not self.failures and self.growth <= GROWTH


def campaign(cases, seed, only=None):
    """Every case has a name, "seed target number", from which it can be made again."""
    names = [only] if only else list(TARGETS)
    result = Result()
    _one(names[0], f"{seed} warm {names[0]}", Result())  # imports are no growth
    before = _memory()
    for number in range(cases):
        name = names[number % len(names)]
        _one(name, f"{seed} {name} {number}", result)
        result.growth = _memory() - before
    return result


def _one(name, case, result):
    began = time.process_time()
    timers = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
    old = {number: signal.signal(number, _too_long) for number in timers.values()}
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WAIT)
    try:
        with tempfile.TemporaryDirectory() as folder:
            TARGETS[name](random.Random(case), Path(folder))
        result.accepted[name] += 1
    except PacelineError as problem:
        result.refused[name] += 1
        if len(str(problem)) > 20_000:
            result.failures.append(f"{case}: a message of {len(str(problem))} characters")
    except ValidationError as problem:
        result.refused[name] += 1
        if name != "runs":  # where the command line turns it into ours
            result.failures.append(f"{case}: {problem}")
    except (Exception, Hang):
        result.failures.append(f"{case}: {traceback.format_exc(limit=-4)}")
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in old.items():
            signal.signal(number, handler)
        result.slowest = max(result.slowest, time.process_time() - began)


def _too_long(*_):
    raise Hang


def _memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", choices=list(TARGETS))
    asked = parser.parse_args()
    result = campaign(asked.cases, asked.seed, asked.only)
    for failure in result.failures:
        print(failure)
    print(
        f"seed {asked.seed}: {asked.cases} cases, slowest {result.slowest:.2f} s CPU, growth {result.growth >> 20} MB"
    )
    for name in TARGETS:
        print(f"{name:16} {result.accepted[name]:5} accepted {result.refused[name]:5} refused")
    print(f"{len(result.failures)} failure(s)")
    sys.exit(not result.good)


if __name__ == "__main__":
    main()
