"""Real processes of an elastic job under faults, and the oracles that judge them.

`python -m tests.elastic.crew [--comm tcp] SCENARIO ...` imports torch once, in one thread, and forks coordinator and
workers from it, so that a job of four starts in milliseconds. It prints one line of JSON per scenario.

    ledger     every sample is in exactly one committed step of every epoch
    counts     a weight per sample grows by one with every use: it ends as the number of epochs
    replicas   all members have the same bits after every commit
    same       the bits at the end are those of one undisturbed worker
"""

import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import paceline
from paceline.elastic.__main__ import main as coordinate
from paceline.elastic.frames import ABSENT, make_token
from paceline.elastic.journal import Journal
from paceline.elastic.launch import FOLDER
from paceline.elastic.presence import ElasticPresence
from paceline.train import elastic_pace
from paceline.train.faults import VARIABLE

SAMPLES, GLOBAL, EPOCHS = 67, 16, 3  # a prime number, and a batch that does not divide it
COMM = "shm"  # what moves gradients and votes; --comm sets it
LIMIT = 120.0  # seconds for one scenario on a busy machine


class Counting(nn.Module):
    """A weight per sample, whose gradient is -1 per use, beside a small network with dropout."""

    def __init__(self):
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)).double()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index, torch.full((4,), (index % 13) / 13, dtype=torch.float64)


def digest(model):
    parts = [tensor.detach().numpy().tobytes() for tensor in model.state_dict().values()]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:20]


def keep(pace, kept, full):
    """Save after the third step; after the sixth, on a disk that is full after 512 KiB."""
    ballast = torch.zeros(1 << 18)  # 1 MiB
    if pace.steps == 3:
        pace.save(kept, ballast=ballast)
    if pace.steps == 6 and full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, resource.RLIM_INFINITY))
        pace.save(kept, ballast=ballast)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def work(folder, slot, start, membership, pause, keeps="", epochs=EPOCHS):
    """Train as a user's script does, and write down what was computed and committed."""
    os.environ.update({FOLDER: str(folder), "RANK": str(slot), "WORLD_SIZE": str(start)})
    os.environ["PACELINE_CHOICES"] = json.dumps({"comm": COMM})
    log = (folder / f"log-{slot}-{os.getpid()}.jsonl").open("a", buffering=1)
    worker = paceline.join()
    torch.manual_seed(7)
    model = Counting()
    groups = [{"params": [model.counts], "lr": 1.0}, {"params": model.net.parameters(), "lr": 0.01, "momentum": 0.9}]
    optimizer = torch.optim.SGD(groups)
    rates = [lambda step: 1.0, lambda step: 0.8 ** (step // 2)]  # that of the counting weights stays
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rates)
    pace = paceline.wrap(model, optimizer, membership=membership)
    kept = folder / "kept"
    if keeps and (kept / "latest").exists():
        pace.load(kept)
    steps = -(-SAMPLES // GLOBAL)
    for ids, x in worker.batches(Numbers(), batch_size=GLOBAL // start, epochs=epochs):
        step, total = pace.steps, min(GLOBAL, SAMPLES - pace.steps % steps * GLOBAL)
        used = [] if pace.weight == 0 else ids.tolist()
        line = {"step": step, "generation": pace._generation, "ids": used}
        print(json.dumps({"at": time.time(), "what": "shard", **line}), file=log)
        time.sleep(pause)
        scale = total / len(used) if used else 0.0
        (-scale * model.counts[ids].sum() + model.net(x).pow(2).mean()).backward()
        generation = pace._generation
        if pace.step():
            scheduler.step()
            line = {"what": "commit", "step": step, "generation": generation, "hash": digest(model)}
            print(json.dumps({"at": time.time(), **line}), file=log)
            if keeps:
                keep(pace, kept, keeps == "full")
    line = {"what": "end", "hash": digest(model), "counts": model.counts.tolist(), "steps": pace.steps}
    print(json.dumps({"at": time.time(), **line}), file=log)
    worker.close()


class Crew:
    """The processes of one job, and what happens to them."""

    def __init__(self, start, membership, pause=0.004, epochs=EPOCHS, task=0):
        self.folder = Path(tempfile.mkdtemp(prefix="paceline-crew-"))
        self.start, self.membership, self.pause = start, membership, pause
        self.epochs, self.task = epochs, task
        make_token(self.folder)
        self.workers, self.slots, self.coordinator, self.keeps = {}, 0, 0, ""
        self.killed = []

    def fork(self, act):
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            act()
            code = 0
        except SystemExit as problem:
            code = problem.code or 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def coordinate(self, most=6):
        words = [
            str(self.folder),
            "--start",
            str(self.start),
            "--max",
            str(most),
            "--rule",
            COMM,
            "--task",
            str(self.task),
        ]
        self.coordinator = self.fork(lambda: coordinate(words))

    def add(self, fault=None, slower=1.0):
        slot, self.slots = self.slots, self.slots + 1

        def act():
            if fault:
                os.environ[VARIABLE] = fault
            work(self.folder, slot, self.start, self.membership, slower * self.pause, self.keeps, self.epochs)

        pid = self.fork(act)
        self.workers[pid] = slot
        return pid

    def kill(self, pid, number=signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        self.killed.append(time.time())

    def reap(self):
        """Return the workers that ended since the last look, with their status."""
        ended = []
        for pid in tuple(self.workers):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self.workers[pid]
                ended.append((pid, os.waitstatus_to_exitcode(status)))
        return ended

    def lines(self, what):
        found = []
        for path in self.folder.glob("log-*.jsonl"):
            for text in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last line of a killed process may be torn
                    line = json.loads(text)
                    if line["what"] == what:
                        found.append({**line, "member": path.stem})
        return found

    def groups(self):
        journal = Journal(self.folder / "journal.db")
        try:
            return journal.groups()
        finally:
            journal.close()

    def incidents(self):
        journal = Journal(self.folder / "journal.db")
        try:
            return [line["what"] for line in journal.incidents()]
        finally:
            journal.close()

    def committed(self):
        return max((line["step"] + 1 for line in self.lines("commit")), default=0)

    def wait(self, until, during=lambda: None):
        limit = time.monotonic() + LIMIT
        while not until():
            if time.monotonic() > limit:
                raise TimeoutError(f"{self.committed()} steps were committed")
            during()
            time.sleep(0.005)

    def finish(self, respawn=False):
        """Wait for all workers; with `respawn`, replace those that a signal ended. Return the exit codes."""
        codes = []

        def look():
            for _, code in self.reap():
                if code < 0 and respawn:
                    self.add()
                elif code >= 0:
                    codes.append(code)

        self.wait(lambda: not self.workers, look)
        return codes

    def close(self):
        for pid in (*self.workers, self.coordinator):
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        shutil.rmtree(self.folder)

    # the oracles --------------------------------------------------------------------------------

    def standing(self):
        """Return the commits that no rollback has withdrawn."""
        lines = self.lines("commit")
        for generation, _, steps in self.rollbacks():
            lines = [line for line in lines if line["generation"] >= generation or line["step"] < steps]
        return lines

    def rollbacks(self):
        journal = Journal(self.folder / "journal.db")
        try:
            return journal.rollbacks()
        finally:
            journal.close()

    def judge(self, withdrawn=True):
        steps = -(-SAMPLES // GLOBAL)
        commits, hashes = {}, {}
        for line in self.standing() if withdrawn else self.lines("commit"):
            commits.setdefault(line["step"], set()).add(line["generation"])
            hashes.setdefault(line["step"], set()).add(line["hash"])
        used = {}
        for line in self.lines("shard"):
            used.setdefault((line["step"], line["generation"]), []).extend(line["ids"])
        ledger = set(commits) == set(range(self.epochs * steps)) and all(len(group) == 1 for group in commits.values())
        for epoch in range(self.epochs if ledger else 0):
            ids = [i for s in range(epoch * steps, (epoch + 1) * steps) for i in used[s, min(commits[s])]]
            ledger = ledger and sorted(ids) == list(range(SAMPLES))
        ends = self.lines("end")
        journal = Journal(self.folder / "journal.db")
        generations = [group.generation for group in journal.groups()]
        journal.close()
        return {
            "ledger": ledger,
            "counts": bool(ends) and all(abs(c - self.epochs) < 1e-9 for line in ends for c in line["counts"]),
            "replicas": all(len(group) == 1 for group in hashes.values()),
            "hash": sorted({line["hash"] for line in ends}),
            "generations": len(generations),
            "seconds": self.gaps(),
        }

    def gaps(self):
        """Seconds from each kill to the next commit."""
        times = sorted(line["at"] for line in self.lines("commit"))
        return [round(next((t - at for t in times if t > at), -1.0), 3) for at in self.killed]


DETERMINISTIC, FAST = "elastic(deterministic=true)", "elastic"


def undisturbed(membership=DETERMINISTIC, start=1, epochs=EPOCHS):
    crew = Crew(start, membership, epochs=epochs)
    try:
        crew.coordinate()
        for _ in range(start):
            crew.add()
        codes = crew.finish()
        return {**crew.judge(), "codes": codes}
    finally:
        crew.close()


def killed_at(point, membership=DETERMINISTIC, victim=0):
    """One of four workers kills itself at a named point of its third step, and is replaced."""
    crew = Crew(4, membership)
    try:
        crew.coordinate()
        for place in range(4):
            crew.add(f"{point}:3:9" if place == victim else None)
        survivors = [pid for place, pid in enumerate(crew.workers) if place != victim]
        crew.wait(lambda: crew.committed() >= 4)
        codes = crew.finish(respawn=True)
        return {**crew.judge(), "codes": codes, "survivors": len(survivors)}
    finally:
        crew.close()


def down_and_up():
    """Three of four die at once, the last one goes on alone, then three come back."""
    crew = Crew(4, DETERMINISTIC, pause=0.05)
    try:
        crew.coordinate()
        pids = [crew.add() for _ in range(4)]
        crew.wait(lambda: crew.committed() >= 3)
        for pid in pids[:3]:
            crew.kill(pid)
        alone = crew.committed()
        crew.wait(lambda: crew.committed() >= alone + 1)
        for _ in range(3):
            crew.add()
        codes = crew.finish()
        return {**crew.judge(), "codes": codes}
    finally:
        crew.close()


def coordinator_killed():
    """The coordinator is killed, a worker dies while it is away, and it comes back."""
    crew = Crew(4, DETERMINISTIC, pause=0.01)
    try:
        crew.coordinate()
        pids = [crew.add() for _ in range(4)]
        crew.wait(lambda: crew.committed() >= 3)
        os.kill(crew.coordinator, signal.SIGKILL)
        os.waitpid(crew.coordinator, 0)
        crew.wait(lambda: crew.committed() >= 5)  # commits go on without it
        crew.kill(pids[1])
        crew.coordinate()
        codes = crew.finish(respawn=True)
        return {**crew.judge(), "codes": codes}
    finally:
        crew.close()


def stopped():
    """A worker is frozen, evicted, wakes up, is fenced, and comes back as a newcomer."""
    crew = Crew(4, DETERMINISTIC, pause=0.02)
    try:
        crew.coordinate()
        pids = [crew.add() for _ in range(4)]
        crew.wait(lambda: crew.committed() >= 6)
        crew.kill(pids[1], signal.SIGSTOP)
        at = crew.committed()
        crew.wait(lambda: crew.committed() >= at + 3)
        os.kill(pids[1], signal.SIGCONT)
        codes = crew.finish()
        journal = Journal(crew.folder / "journal.db")
        fenced = [line for line in journal.incidents() if line["what"] == "fenced"]
        journal.close()
        return {**crew.judge(), "codes": codes, "fenced": len(fenced)}
    finally:
        crew.close()


def left(stays=False):
    """A worker is asked to end, finishes its step and goes. With `stays` it asks in every vote and never goes."""
    leave = ElasticPresence.leave
    if stays:
        ElasticPresence.leave = _stay(leave)
    crew = Crew(4, DETERMINISTIC, pause=0.02)
    try:
        crew.coordinate()
        pids = [crew.add() for _ in range(4)]
        crew.wait(lambda: crew.committed() >= 4)
        crew.kill(pids[2], signal.SIGTERM)
        codes = crew.finish()
        shards = {(line["step"], line["generation"]) for line in crew.lines("shard")}
        commits = {(line["step"], line["generation"]) for line in crew.lines("commit")}
        return {**crew.judge(), "codes": codes, "abandoned": len(shards - commits), "what": crew.incidents()}
    finally:
        ElasticPresence.leave = leave
        crew.close()


def _stay(leave):
    def stay(presence, **how):
        parting, presence.parting = presence.parting, False
        counts = leave(presence, **how)
        presence.parting = parting
        return counts

    return stay


def joined(dies=""):
    """A worker joins three others; it dies in the middle of the transfer, or the donor does."""
    crew = Crew(4, DETERMINISTIC, pause=0.03)
    try:
        crew.coordinate()
        (crew.folder / f"{ABSENT}-3").touch()
        pids = [crew.add("giving the state:2:9" if dies == "donor" else None) for _ in range(3)]
        crew.wait(lambda: crew.committed() >= 3)
        before = crew.committed()
        pid = crew.add("during the transfer:1:9" if dies == "joiner" else None)
        codes = crew.finish()
        commits = [line for line in crew.lines("commit") if line["member"].endswith(f"-{pid}")]
        judged, survivors = crew.judge(), len(crew.lines("end"))
        return {**judged, "codes": codes, "before": before, "joiner": len(commits), "ended": survivors, "of": len(pids)}
    finally:
        crew.close()


def all_killed(keeps):
    """Workers and coordinator are killed; all are started again, and go on from the checkpoint."""
    crew = Crew(4, DETERMINISTIC, pause=0.03)
    crew.keeps = keeps
    try:
        crew.coordinate()
        pids = [crew.add() for _ in range(4)]
        crew.wait(lambda: crew.committed() >= 8)
        for pid in (crew.coordinator, *pids):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(crew.coordinator, 0)
        crew.wait(lambda: not crew.workers, crew.reap)
        before = crew.committed()
        crew.coordinate()
        for _ in range(4):
            crew.add()
        codes = crew.finish()
        steps = [path.name for path in (crew.folder / "kept").glob("*") if path.is_dir()]
        found = {"rollbacks": crew.rollbacks(), "before": before, "kept": steps, "what": crew.incidents()}
        return {**crew.judge(), **found, "codes": codes, "unaware": crew.judge(withdrawn=False)["ledger"]}
    finally:
        crew.close()


def slow(task=3, dies=False):
    """The last of four workers is six times as slow as the others; with `dies`, another one is killed later."""
    crew = Crew(4, DETERMINISTIC, pause=0.02, task=task)
    try:
        crew.coordinate()
        pids = [crew.add(slower=6.0 if slot == 3 else 1.0) for slot in range(4)]
        if dies:
            crew.wait(lambda: any(len(set(group.lengths)) > 1 for group in crew.groups()))
            crew.kill(pids[0])
        codes = crew.finish()
        groups = crew.groups()
        deals = [dict(zip((int(m.partition("-")[0]) for m in g.members), g.lengths, strict=True)) for g in groups]
        computed = {}
        for line in crew.lines("shard"):
            if line["step"] >= groups[-1].steps:
                slot = int(line["member"].split("-")[1])
                computed.setdefault(slot, {}).setdefault(line["step"], []).append(line["ids"])
        found = {slot: sorted({len(shards) for shards in steps.values()}) for slot, steps in computed.items()}
        found = {"deals": deals, "starts": [group.steps for group in groups], "computed": found}
        return {**crew.judge(), **found, "codes": codes}
    finally:
        crew.close()


def all_left():
    """All workers are asked to end: the coordinator says that training is not complete."""
    crew = Crew(2, DETERMINISTIC, pause=0.05)
    try:
        crew.coordinate()
        pids = [crew.add() for _ in range(2)]
        crew.wait(lambda: crew.committed() >= 2)
        for pid in pids:
            crew.kill(pid, signal.SIGTERM)
        codes = crew.finish()
        coordinator, crew.coordinator = os.waitstatus_to_exitcode(os.waitpid(crew.coordinator, 0)[1]), 0
        return {"codes": codes, "coordinator": coordinator, "ended": len(crew.lines("end"))}
    finally:
        crew.close()


def early(told=True):
    """One of four workers dies before the first group. With `told`, the launcher says that nobody replaces it."""
    crew = Crew(4, DETERMINISTIC)
    try:
        crew.coordinate()
        pids = [crew.add() for _ in range(3)]
        if told:
            (crew.folder / f"{ABSENT}-3").touch()
            codes = crew.finish()
            return {**crew.judge(), "codes": codes}
        time.sleep(2.5)
        return {"committed": crew.committed(), "running": len(pids) - len(crew.reap())}
    finally:
        crew.close()


def nemesis(seed=0, seconds=20.0, membership=DETERMINISTIC):
    """Kills and joins at random times, one to six workers."""
    dice, crew = random.Random(seed), Crew(4, membership, pause=0.02)
    try:
        crew.coordinate()
        for _ in range(4):
            crew.add()
        crew.wait(lambda: crew.committed() >= 2)
        limit, due = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < limit and crew.workers:
            crew.reap()
            if time.monotonic() > due:
                due = time.monotonic() + dice.expovariate(1.0)
                if len(crew.workers) > 1 and dice.random() < 0.6:
                    crew.kill(dice.choice(sorted(crew.workers)))
                elif len(crew.workers) < 6:
                    crew.add()
            time.sleep(0.01)
        codes = crew.finish(respawn=True)
        return {**crew.judge(), "codes": codes, "kills": len(crew.killed), "seed": seed}
    finally:
        crew.close()


def careless():
    """Survivors apply the step of a dead member as if it had been committed: the oracles must notice."""
    leave = ElasticPresence.leave
    ElasticPresence.leave = lambda self, **how: bool(leave(self, **how) or True)
    try:
        return killed_at("before send")
    finally:
        ElasticPresence.leave = leave


def forgotten():
    """A joiner gets model and optimizer, but its scheduler begins anew: the oracles must notice."""
    states_of = elastic_pace.states_of
    elastic_pace.states_of = lambda schedulers: [None for _ in schedulers]
    try:
        return joined()
    finally:
        elastic_pace.states_of = states_of


SCENARIOS = {
    "undisturbed": undisturbed,
    "fast": lambda: undisturbed(FAST, 2),
    "before send": lambda: killed_at("before send"),
    "after the result": lambda: killed_at("after the result", victim=1),
    "after the vote": lambda: killed_at("after the vote", victim=2),
    "after the update": lambda: killed_at("after the update", victim=3),
    "fast, after the vote": lambda: killed_at("after the vote", FAST),
    "down and up": down_and_up,
    "coordinator killed": coordinator_killed,
    "stopped": stopped,
    "left": left,
    "never goes": lambda: left(stays=True),
    "joined": joined,
    "joiner dies": lambda: joined("joiner"),
    "donor dies": lambda: joined("donor"),
    "all killed": lambda: all_killed("yes"),
    "all killed, full disk": lambda: all_killed("full"),
    "all killed, nothing kept": lambda: all_killed(""),
    "slow": slow,
    "slow, fewer members": lambda: slow(dies=True),
    "slow, no tasks": lambda: slow(task=0),
    "all left": all_left,
    "early": early,
    "early, nobody told": lambda: early(told=False),
    "nemesis": nemesis,
    "careless": careless,
    "scheduler forgotten": forgotten,
}


def warm_up():
    """Import what workers would import one by one, without starting a thread."""
    import torch._dynamo

    import paceline.api.elastic
    from paceline.run.compose.compose import compose
    from paceline.run.run import Run

    compose(Run(membership=FAST), unknown=("model",))
    model = Counting()
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).zero_grad()
    assert paceline.api.elastic.ElasticWorker
    assert len(os.listdir("/proc/self/task")) == 1, "a process that forks must have one thread"


if __name__ == "__main__":
    torch.set_num_threads(1)
    warm_up()
    words = sys.argv[1:]
    if words[:1] == ["--comm"]:
        COMM, words = words[1], words[2:]
    for name in words or list(SCENARIOS)[:-2]:
        began = time.monotonic()
        try:
            result = SCENARIOS[name]()
        except Exception as problem:
            result = {"failed": repr(problem)}
        print(json.dumps({"scenario": name, "took": round(time.monotonic() - began, 1), **result}), flush=True)
