"""A campaign against elastic jobs: kills, joins, leaves and deaths of the coordinator at random, judged by oracles.

    python -m tests.elastic.chaos --rounds 20 --seed 1
    python -m tests.elastic.chaos --seed 1 --only 7         one of its rounds again

Seconds are from a fault to the first commit of a later generation; for the coordinator, to the next commit. A fault
that hit a worker outside the group, or the end of a job, has none.
"""

import argparse
import json
import os
import random
import signal
import sys
import time

import torch

from paceline.elastic.presence import ElasticPresence
from tests.elastic import crew as crew_module
from tests.elastic.crew import DETERMINISTIC, FAST, Crew, undisturbed, warm_up

MOST = 6  # workers
MEAN = 0.7  # seconds between two faults


class Nemesis:
    """The faults of one round. At least one worker that holds the state of training is always spared."""

    def __init__(self, crew, seed):
        self._crew, self._dice = crew, random.Random(seed)
        self.faults = []  # kind, time, generation at that time or None
        self._left = set()  # workers that were asked to leave

    def strike(self):
        crew, seasoned = self._crew, self.seasoned()
        roll = self._dice.random()
        if roll < 0.1:
            self._note("coordinator", True)
            os.kill(crew.coordinator, signal.SIGKILL)
            os.waitpid(crew.coordinator, 0)
            crew.coordinate(MOST)
        elif roll < 0.4 or len(seasoned) < 2:
            if len(crew.workers) < MOST:
                self._note("join", True)
                crew.add()
        else:
            victim = self._dice.choice(sorted(crew.workers) if len(seasoned) > 2 else seasoned)
            leaves = roll > 0.85
            self._note("leave" if leaves else "kill", victim in seasoned)
            crew.kill(victim, signal.SIGTERM if leaves else signal.SIGKILL)
            if leaves:
                self._left.add(victim)

    def seasoned(self):
        """Return the pids of workers that have committed, and were not asked to leave."""
        pids = {int(line["member"].rpartition("-")[2]) for line in self._crew.lines("commit")}
        return sorted(pids & set(self._crew.workers) - self._left)

    def _note(self, kind, inside):
        generations = [line["generation"] for line in self._crew.lines("commit")]
        self.faults.append((kind, time.time(), max(generations, default=0) if inside else None))

    def seconds(self):
        """Return kind and seconds to the next commit of every fault; None where there is none."""
        commits = sorted((line["at"], line["generation"]) for line in self._crew.lines("commit"))
        rows = []
        for kind, at, generation in self.faults:
            later = [t for t, g in commits if t > at and (kind == "coordinator" or g > (generation or 0))]
            rows.append((kind, later[0] - at if later and generation is not None else None))
        return rows


def fight(seed, membership, epochs):
    """One job under faults; return what the oracles say of it."""
    crew = Crew(4, membership, pause=0.02, epochs=epochs)
    nemesis, dice = Nemesis(crew, seed), random.Random(f"times {seed}")
    try:
        crew.coordinate(MOST)
        for _ in range(4):
            crew.add()
        crew.wait(lambda: crew.committed() >= 2)
        due, codes = time.monotonic(), []
        while not crew.lines("end"):
            codes += [code for _, code in crew.reap() if code >= 0]
            if not crew.workers:
                break
            if time.monotonic() > due:
                due = time.monotonic() + dice.expovariate(1 / MEAN)
                nemesis.strike()
            time.sleep(0.01)
        codes += crew.finish()
        return {**crew.judge(), "codes": codes, "faults": nemesis.seconds(), "seed": seed}
    finally:
        crew.close()


def table(faults):
    """Return the lines of a table: kinds of faults with their number and seconds to the next commit."""
    lines = ["fault         number   timed     p50     p95     max   (seconds to the next commit)"]
    for kind in ("kill", "leave", "join", "coordinator"):
        every = [seconds for name, seconds in faults if name == kind]
        timed = sorted(seconds for seconds in every if seconds is not None)
        cells = [timed[min(len(timed) - 1, int(part * len(timed)))] for part in (0.5, 0.95, 1.0)] if timed else []
        lines.append(f"{kind:<12}{len(every):>8}{len(timed):>8}" + "".join(f"{cell:>8.3f}" for cell in cells))
    return lines


def problems_of(result, expected, deterministic):
    """Return the oracles that a round does not satisfy."""
    wrong = [name for name in ("ledger", "counts", "replicas") if not result[name]]
    wrong += ["exit codes"] if set(result["codes"]) - {0} else []
    return wrong + (["same bits"] if deterministic and result["hash"] != expected else [])


def main():
    parser = argparse.ArgumentParser(prog="tests.elastic.chaos")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--fast", action="store_true", help="membership elastic instead of deterministic")
    parser.add_argument("--comm", choices=("shm", "tcp"), default="shm")
    parser.add_argument("--careless", action="store_true", help="apply steps without a verdict: must be noticed")
    chosen = parser.parse_args()
    crew_module.COMM = chosen.comm
    torch.set_num_threads(1)
    warm_up()
    membership = FAST if chosen.fast else DETERMINISTIC
    expected = undisturbed(membership, epochs=chosen.epochs)["hash"]
    if chosen.careless:
        leave = ElasticPresence.leave
        ElasticPresence.leave = lambda presence, **how: bool(leave(presence, **how) or True)
        ElasticPresence.ended = lambda presence: False  # so that members meet a death where they wait for the sum
    faults, failed = [], 0
    for number in range(chosen.rounds) if chosen.only is None else (chosen.only,):
        try:
            result = fight(f"{chosen.seed}-{number}", membership, chosen.epochs)
            wrong = problems_of(result, expected, not chosen.fast)
        except Exception as problem:
            result, wrong = {"faults": []}, [repr(problem)]
        faults += result["faults"]
        failed += bool(wrong)
        print(f"round {number}: {len(result['faults'])} faults, {', '.join(wrong) or 'all oracles hold'}", flush=True)
        if wrong:
            print(json.dumps({name: value for name, value in result.items() if name != "faults"}), flush=True)
    print(*table(faults), sep="\n")
    print(f"seed {chosen.seed}: {len(faults)} faults, {failed} rounds failed", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
