"""The rounds of the chaos campaign: an endless job of four workers (crew.py), faults of one kind, and its end.

    points        every named point of a step, passed by every rank; the donor or the newcomer during a transfer; a
                  second death while the others recover
    random        kills, joins, leaves, freezes and deaths of the coordinator at random times
    collapse      three of four at once, down to one worker, then up to four
    coordinator   20 deaths of the coordinator at random times, each restarted after a second; half of them with a
                  worker that dies meanwhile
    freeze        SIGSTOP for 10 seconds, then SIGCONT
    resume        kill -9 of everything, and a new start from the last checkpoint
    patience      no eviction: a step of 3 s whose hooks fire, or that waits for its data; and one for a hang of 3 s
    slow          no eviction in a job whose steps all take 3 s
    long          ten minutes of random kills and joins, every 3 s on average, one to six workers

A round returns its faults, each with its seconds: to the first commit of a later generation; for the coordinator from
its restart to the next commit; for resume from the start of the new workers, which have torch imported, to their first
commit. A fault without such a commit (a worker outside the group, the end of a job) has None.
"""

import os
import random
import signal
import time

from paceline.comm.faults import ENTRY_POINTS, STEP_POINTS
from paceline.elastic.nemesis import FROZEN
from tests.elastic.crew import MARGIN, Crew

WORKERS, MOST = 4, 6
MEAN = 0.7  # seconds between two random faults
FREEZE, AWAY = 10.0, 1.0  # seconds that a worker is stopped; that a coordinator is away
DEATHS, FREEZES, STARTS, COLLAPSES = 20, 3, 5, 3


class Round:
    """A job under faults. `faults` are dicts with kind, time, seconds and more."""

    def __init__(self, membership, seed, pause=0.02, keeps=""):
        self.crew = Crew(WORKERS, membership, pause=pause, epochs=None)
        self.crew.keeps, self.dice = keeps, random.Random(seed)
        self.faults, self.codes, self.wrong = [], [], []

    def begin(self):
        self.crew.coordinate(MOST)
        for _ in range(WORKERS):
            self.crew.add()
        self.crew.wait(lambda: self.crew.whole(WORKERS))

    def reap(self):
        self.codes += [code for _, code in self.crew.reap() if code >= 0]

    def whole(self, size=WORKERS):
        """Add workers until there are `size`, and wait until all have committed in one group; return pids by rank."""
        self.reap()
        while len(self.crew.workers) < size:
            self.crew.add()
        self.crew.wait(lambda: self.crew.whole(size), self.reap)
        return self.crew.whole(size)

    def newest(self):
        return max(line["generation"] for line in self.crew.last().values())

    def fault(self, kind, at, generation, **more):
        self.faults.append({"kind": kind, "at": at, "generation": generation, **more})

    def commit_after(self, at, generation=0):
        """Wait for the first commit after a time and of a later generation; return the seconds."""

        def first():
            return [x for x in self.crew.last().values() if x["at"] > at and x["generation"] > generation]

        self.crew.wait(first, self.reap)
        lines = [x["at"] for x in self.crew.lines("commit") if x["at"] > at and x["generation"] > generation]
        return round(min(lines) - at, 4)

    def steps(self, count):
        self.crew.wait(lambda: self.crew.committed() >= count, self.reap)

    def commits(self, generation, count):
        """Wait until the members of a generation have made so many commits together."""
        self.crew.wait(lambda: sum(x["generation"] == generation for x in self.crew.lines("commit")) >= count)

    def commits_again(self, pid, before):
        self.crew.wait(lambda: self.crew.last()[pid] is not before, self.reap)

    def gone(self, pid):
        """Wait until a process has ended; return when."""
        self.crew.wait(lambda: pid not in self.crew.workers, self.reap)
        return time.time()

    def end(self, margin):
        self.reap()
        self.crew.end_soon(margin)
        self.codes += self.crew.finish()

    def judge(self):
        """Return what the oracles say, and the faults with their seconds."""
        found = {"codes": self.codes, "steps": self.crew.committed(), "faults": self.seconds(), "wrong": self.wrong}
        return {**self.crew.judge(), **found}

    def seconds(self):
        """Return the faults; those that nobody has timed get the seconds to the next commit of a later generation."""
        commits = sorted((line["at"], line["generation"]) for line in self.crew.lines("commit"))
        found = []
        for fault in self.faults:
            at, generation = fault.pop("at"), fault.pop("generation")
            if "seconds" not in fault:
                later = [t for t, g in commits if t > at and generation is not None and g > generation]
                fault["seconds"] = round(later[0] - at, 4) if later else None
            found.append(fault)
        return found


def points(made):
    for point in STEP_POINTS:
        for rank in range(WORKERS):
            pids, generation = made.whole(), made.newest()
            made.crew.arm(pids[rank], point, made.dice.randint(1, 3) if point == "after a chunk" else 1)
            at = made.gone(pids[rank])
            made.fault("kill", at, generation, point=point, rank=rank, seconds=made.commit_after(at, generation))
    for point in ("while leaving", "while entering"):
        for rank in range(WORKERS):
            pids, generation = made.whole(), made.newest()
            made.crew.arm(pids[rank], point)
            at = time.time()
            made.crew.kill(pids[(rank + 1) % WORKERS])
            made.fault("kill", at, generation, rank=(rank + 1) % WORKERS)
            again = made.gone(pids[rank])
            left = max((x["generation"] for x in made.crew.lines("commit") if x["at"] < again), default=0)
            made.fault("kill", again, left, point=point, rank=rank, seconds=made.commit_after(again, left))
    for point in ("during the transfer", "giving the state"):
        for _ in range(2):
            pids, generation = made.whole(3), made.newest()
            if point == "giving the state":
                made.crew.arm(pids[0], point)
            fresh = made.crew.add(None if point == "giving the state" else f"{point}:1:9")
            victim = pids[0] if point == "giving the state" else fresh
            at = made.gone(victim)
            seconds = made.commit_after(at, generation)
            made.fault("kill", at, generation, point=point, rank=pids.index(victim) if victim in pids else -1)
            made.faults[-1]["seconds"] = seconds


def collapse(made):
    for _ in range(COLLAPSES):
        pids, generation = made.whole(), made.newest()
        spared = made.dice.choice(pids)
        at = time.time()
        for pid in pids:
            if pid != spared:
                made.crew.kill(pid)
                made.fault("kill", at, generation, rank=pids.index(pid))
        seconds = made.commit_after(at, generation)
        for fault in made.faults[-3:]:
            fault["seconds"] = seconds
        made.whole(1)
        generation, at = made.newest(), time.time()
        made.whole()
        for _ in range(3):
            made.fault("join", at, generation)


def coordinator(made):
    crew = made.crew
    for number in range(DEATHS):
        pids = made.whole()
        time.sleep(made.dice.uniform(0.0, 0.5))
        killed = time.time()
        os.kill(crew.coordinator, signal.SIGKILL)
        os.waitpid(crew.coordinator, 0)
        victim = made.dice.choice(pids) if number % 2 else 0
        if victim:
            time.sleep(made.dice.uniform(0.0, AWAY / 2))
            at, generation = time.time(), made.newest()
            crew.kill(victim)
            made.fault("kill", at, generation, note="without a coordinator", rank=pids.index(victim))
        time.sleep(max(0.0, killed + AWAY - time.time()))
        restarted, generation = time.time(), made.newest()
        crew.coordinate(MOST)
        seconds = made.commit_after(restarted, generation if victim else 0)
        meanwhile = sum(killed < line["at"] < restarted for line in crew.lines("commit"))
        made.fault("coordinator", restarted, None, seconds=seconds, meanwhile=meanwhile, alone=not victim)
    for number, point in enumerate(2 * ENTRY_POINTS):
        pids = made.whole()
        os.kill(crew.coordinator, signal.SIGKILL)
        os.waitpid(crew.coordinator, 0)
        at = time.time()
        crew.coordinate(MOST, fault=f"{point}:1:9")
        made.fault("coordinator", at, None, seconds=made.commit_after(at), alone=True)
        at, generation = time.time(), made.newest()
        crew.kill(pids[number])
        made.fault("kill", at, generation, note="without a coordinator", rank=number)
        crew.lose_coordinator()
        time.sleep(AWAY)
        restarted = time.time()
        crew.coordinate(MOST)
        seconds = made.commit_after(restarted, generation)
        made.fault("coordinator", restarted, None, seconds=seconds, point=point, alone=False)


def freeze(made):
    """D is 2 s here, because steps are shorter than 0.6 s."""
    crew = made.crew
    for number in range(FREEZES):
        pids, generation = made.whole(), made.newest()
        made.commits(generation, 8 * WORKERS)
        time.sleep(made.dice.uniform(0.0, 0.1))
        rank = number % WORKERS
        at = time.time()
        os.kill(pids[rank], signal.SIGSTOP)
        seconds = made.commit_after(at, generation)
        evicted = next(when for number, when in crew.formed() if number > generation) - at
        time.sleep(max(0.0, at + FREEZE - time.time()))
        before, woken = crew.last()[pids[rank]], time.time()
        others = sum(at + seconds <= line["at"] < woken for line in crew.lines("commit"))
        os.kill(pids[rank], signal.SIGCONT)
        made.commits_again(pids[rank], before)
        own = [x["at"] for x in crew.lines("commit") if x["at"] > woken and x["member"].endswith(f"-{pids[rank]}")]
        made.fault("stop", at, generation, seconds=seconds, rank=rank, evicted=round(evicted, 4))
        made.faults[-1] |= {"others": others, "back": round(min(own) - woken, 4)}
        if not others:
            made.wrong.append("nobody committed while a worker was frozen")
    if crew.incidents().count("fenced") < FREEZES:
        made.wrong.append(f"{crew.incidents().count('fenced')} of {FREEZES} frozen workers were fenced")


def patience(made):
    crew = made.crew
    for number, place in enumerate(("backward", "data", "nowhere")):
        pids, generation = made.whole(), made.newest()
        made.commits(generation, (105 if number else 8) * WORKERS)  # a step of 3 s is not among the last 100
        at = time.time()
        crew.slow(pids[number], place, 3.0)
        time.sleep(5.0)
        evicted = any(when > at for _, when in crew.formed())
        if evicted != (place == "nowhere"):
            made.wrong.append(f"{place}: {'evicted' if evicted else 'not evicted'}")


def slow(made):
    made.steps(8)
    if len(crew_groups := made.crew.groups()) > 1:
        made.wrong.append(f"{len(crew_groups)} generations")


def resume(made):
    crew = made.crew
    for _ in range(STARTS):
        pids = made.whole()
        goal = crew.committed() + made.dice.randint(12, 25)
        made.steps(goal)
        time.sleep(made.dice.uniform(0.0, 0.05))
        for pid in (crew.coordinator, *pids):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(crew.coordinator, 0)
        crew.wait(lambda: not crew.workers, crew.reap)
        before, rollbacks, at = crew.committed(), len(crew.rollbacks()), time.time()
        crew.coordinate(MOST)
        for _ in range(WORKERS):
            crew.add()
        seconds = made.commit_after(at)
        rolled = crew.rollbacks()[rollbacks:]
        from_step = max((x["step"] for x in crew.lines("resumed") if x["at"] > at), default=0)
        made.fault("kill everything", at, None, seconds=seconds, committed=before, resumed=from_step)
        made.faults[-1]["rolled back"] = len(rolled)
        made.whole()


class Nemesis:
    """Faults at random. At least one worker that holds the state of training is always spared."""

    KINDS = (("coordinator", 0.07), ("stop", 0.12), ("join", 0.42), ("kill", 0.87), ("leave", 1.0))
    SIMPLE = (("join", 0.5), ("kill", 1.0))

    def __init__(self, made, kinds):
        self._made, self._crew, self._dice, self._kinds = made, made.crew, made.dice, kinds
        self._left = set()  # workers that were asked to leave
        self._frozen = {}  # pid -> when it goes on

    def strike(self):
        crew, seasoned, roll = self._crew, self.seasoned(), self._dice.random()
        kind = next(name for name, bound in self._kinds if roll < bound)
        if kind == "coordinator":
            self._note(kind, True)
            os.kill(crew.coordinator, signal.SIGKILL)
            os.waitpid(crew.coordinator, 0)
            crew.coordinate(MOST)
        elif kind == "join" or len(seasoned) < 2:
            if len(crew.workers) < MOST:
                self._note("join", True)
                crew.add()
        else:
            victim = self._dice.choice(seasoned if kind == "stop" or len(seasoned) == 2 else sorted(crew.workers))
            self._note(kind, victim in seasoned)
            number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM}[kind]
            crew.kill(victim, number)
            if kind == "leave":
                self._left.add(victim)
            if kind == "stop":
                self._frozen[victim] = time.monotonic() + FROZEN

    def thaw(self, *, everybody=False):
        for pid, due in tuple(self._frozen.items()):
            if everybody or time.monotonic() > due:
                del self._frozen[pid]
                if pid in self._crew.workers:
                    os.kill(pid, signal.SIGCONT)

    def seasoned(self):
        """Return the pids of workers that have committed lately, were not asked to leave, and are not stopped."""
        last = self._crew.last()
        newest = max(line["generation"] for line in last.values())
        pids = {pid for pid, line in last.items() if line["generation"] == newest}
        return sorted(pids & set(self._crew.workers) - self._left - set(self._frozen))

    def _note(self, kind, inside):
        self._made.fault(kind, time.time(), self._made.newest() if inside else None)
        if kind == "coordinator":
            self._made.faults[-1]["generation"] = -1  # any commit counts


def random_faults(made, *, seconds=12.0, mean=MEAN, kinds=Nemesis.KINDS):
    nemesis, crew = Nemesis(made, kinds), made.crew
    limit = due = time.monotonic()
    limit += seconds
    while time.monotonic() < limit and crew.workers:
        made.reap()
        nemesis.thaw()
        if time.monotonic() > due:
            due = time.monotonic() + made.dice.expovariate(1 / mean)
            nemesis.strike()
        time.sleep(0.01)
    nemesis.thaw(everybody=True)


def long(made):
    random_faults(made, seconds=600.0, mean=3.0, kinds=Nemesis.SIMPLE)


KINDS = {
    "points": points,
    "random": random_faults,
    "collapse": collapse,
    "coordinator": coordinator,
    "freeze": freeze,
    "resume": resume,
    "patience": patience,
    "slow": slow,
    "long": long,
}


def fight(kind, membership, seed):
    """Play one round; return what the oracles say."""
    made = Round(membership, seed, pause=1.5 if kind == "slow" else 0.02, keeps="often" if kind == "resume" else "")
    try:
        made.begin()
        KINDS[kind](made)
        made.end(3 if kind == "slow" else MARGIN)
        return made.judge()
    finally:
        made.crew.close()
