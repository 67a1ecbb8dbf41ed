"""Real processes of an elastic job under faults, and the oracles that judge them.

`python -m tests.elastic.crew [--comm tcp] SCENARIO ...` imports torch once, in one thread, and forks coordinator and
workers from it, so that a job of four starts in milliseconds. It prints one line of JSON per scenario.

    ledger     every sample is in exactly one committed step of every epoch
    counts     a weight per sample grows by one with every use: after every epoch it is the number of epochs
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
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import paceline
from paceline.comm.faults import VARIABLE
from paceline.elastic.__main__ import main as coordinate
from paceline.elastic.frames import ABSENT, make_token
from paceline.elastic.journal import Journal
from paceline.elastic.launch import FOLDER
from paceline.elastic.presence import ElasticPresence
from paceline.train import elastic_pace

SAMPLES, GLOBAL, EPOCHS = 67, 16, 3  # a prime number, and a batch that does not divide it
WIDTH = 256
MARGIN = 25  # steps that all members make before an endless job ends
COMM = "shm"  # what moves gradients and votes; --comm sets it
LIMIT = 120.0  # seconds for one scenario on a busy machine


class Slowly(torch.autograd.Function):
    """Backward that takes `seconds`, with the same gradient as without."""

    @staticmethod
    def forward(context, value, seconds):
        context.seconds = seconds
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.seconds)
        return gradient, None


class Counting(nn.Module):
    """A weight per sample, whose gradient is -1 per use, beside a network with dropout of more than four chunks."""

    def __init__(self):
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))
        layers = (nn.Linear(4, WIDTH), nn.ReLU(), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.net = nn.Sequential(*layers, nn.Linear(WIDTH, 1)).double()

    def predict(self, x, seconds):
        """Return the output for x. Its backward takes `seconds`, and gradients become known one after another."""
        for layer in self.net:
            x = layer(x)
            x = Slowly.apply(x, seconds / len(self.net)) if seconds else x
        return x


def taken(path, *places):
    """Return place and seconds from a file, and remove it, if its place is one of these."""
    if path.exists():
        place, seconds = path.read_text().split()
        if place in places:
            path.unlink()
            return place, float(seconds)
    return "", 0.0


class Numbers(torch.utils.data.Dataset):
    def __init__(self, slow):
        self._slow = slow  # a file that says when reading takes long

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep(taken(self._slow, "data")[1])
        return index, torch.full((4,), (index % 13) / 13, dtype=torch.float64)


def digest(model, optimizer):
    """Return a hash of the whole state of training: parameters and what the optimizer remembers."""
    tensors = list(model.state_dict().values())
    for _, values in sorted(optimizer.state_dict()["state"].items()):
        tensors += [value for _, value in sorted(values.items()) if isinstance(value, torch.Tensor)]
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()[:20]


class Goal:
    """The epochs of a job that goes on until somebody writes a number of steps into FOLDER/goal."""

    def __init__(self, folder):
        self._path, self._steps = folder / "goal", None

    def __str__(self):
        return "endless"  # members of a job must train equally many steps, and compare this text

    def __mul__(self, _):
        return self

    def __gt__(self, steps):
        if self._steps is None and self._path.exists():
            self._steps = int(self._path.read_text())
        return self._steps is None or steps < self._steps

    def __le__(self, steps):
        return not self > steps


def keep(pace, kept, how):
    """Save after every tenth step, or after the third; with "full", then on a disk that is full after 512 KiB."""
    ballast = torch.zeros(1 << 18)  # 1 MiB
    if pace.steps == 3 or (how == "often" and pace.steps % 10 == 0):
        pace.save(kept, ballast=ballast)
    if pace.steps == 6 and how == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, resource.RLIM_INFINITY))
        pace.save(kept, ballast=ballast)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def work(folder, slot, start, membership, pause, keeps="", epochs=EPOCHS):
    """Train as a user's script does, and write down what was computed and committed."""
    os.environ.update({FOLDER: str(folder), "RANK": str(slot), "WORLD_SIZE": str(start)})
    os.environ["PACELINE_CHOICES"] = json.dumps({"comm": COMM})
    path, armed, slow = (folder / f"{name}-{os.getpid()}" for name in ("log", "fault", "slow"))
    log = path.with_name(f"log-{slot}-{os.getpid()}.jsonl").open("a", buffering=1)

    def write(what, **values):
        print(json.dumps({"what": what, "at": time.time(), **values}), file=log)

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
        write("resumed", step=pace.steps)
    steps = -(-SAMPLES // GLOBAL)
    data, goal = Numbers(slow), Goal(folder) if epochs is None else epochs
    for ids, x in worker.batches(data, batch_size=GLOBAL // start, epochs=goal):
        if armed.exists():
            os.environ[VARIABLE] = armed.read_text()
            armed.unlink()
        place, seconds = taken(slow, "backward", "nowhere")
        step, total = pace.steps, min(GLOBAL, SAMPLES - pace.steps % steps * GLOBAL)
        used = [] if pace.weight == 0 else ids.tolist()
        write("shard", step=step, generation=pace._generation, ids=used)
        time.sleep(pause + (seconds if place == "nowhere" else 0.0))
        if taken(slow, "twist")[0]:
            with torch.no_grad():
                model.net[0].bias[0] += 1e-3
        scale = total / len(used) if used else 0.0
        out = model.predict(x, seconds if place == "backward" else 0.0)
        (-scale * model.counts[ids].sum() + out.pow(2).mean()).backward()
        facts = {"step": step, "generation": pace._generation, "rank": worker.rank, "size": worker.size}
        if pace.step():
            scheduler.step()
            write("commit", **facts, hash=digest(model, optimizer))
            if pace.steps % steps == 0:
                epoch = pace.steps // steps
                write("epoch", epoch=epoch, off=(model.counts - epoch).abs().max().item())
            if keeps:
                keep(pace, kept, keeps)
    write("end", hash=digest(model, optimizer), counts=model.counts.tolist(), steps=pace.steps)
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
        self._read, self._lines, self._top, self._last = {}, {}, 0, {}

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

    def coordinate(self, most=6, fault=""):
        """Start the coordinator. With `fault`, it kills itself at that point (comm/faults.py)."""
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

        def act():
            if fault:
                os.environ[VARIABLE] = fault
            coordinate(words)

        self.coordinator = self.fork(act)

    def lose_coordinator(self):
        """Wait until the coordinator has killed itself."""
        os.waitpid(self.coordinator, 0)

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
        """Return the lines that members have written so far. What they wrote since the last call is read."""
        for path in self.folder.glob("log-*.jsonl"):
            if (at := self._read.get(path, 0)) == path.stat().st_size:
                continue
            with path.open("rb") as stream:
                stream.seek(at)
                whole, newline, _ = stream.read().rpartition(b"\n")  # the last line of a killed process may be torn
            self._read[path] = at + len(whole) + len(newline)
            for text in whole.splitlines():
                line = {**json.loads(text), "member": path.stem}
                self._lines.setdefault(line["what"], []).append(line)
                if line["what"] == "commit":
                    self._top = max(self._top, line["step"] + 1)
                    self._last[int(path.stem.rpartition("-")[2])] = line
        return self._lines.get(what, [])

    def last(self):
        """Return the last commit of every worker that has made one, by pid."""
        self.lines("commit")
        return self._last

    def whole(self, size):
        """Return the pids of the last group by rank, if it has `size` members and all of them have committed in it."""
        last = self.last()
        newest = max((line["generation"] for line in last.values()), default=0)
        ranks = {line["rank"]: pid for pid, line in last.items() if line["generation"] == newest}
        sizes = {last[pid]["size"] for pid in ranks.values()}
        return [ranks[rank] for rank in range(size)] if sizes == {size} and set(ranks) == set(range(size)) else []

    def arm(self, pid, point, passing=1, number=signal.SIGKILL):
        """Let a worker kill or stop itself when it passes a named point for the n-th time from now on."""
        self._hand(pid, "fault", f"{point}:{passing}:{int(number)}")
        self.wait(lambda: not (self.folder / f"fault-{pid}").exists())

    def slow(self, pid, place, seconds):
        """Let a worker need that long for its next shard: in backward, for its data, or in a hang (nowhere)."""
        self._hand(pid, "slow", f"{place} {seconds}")

    def _hand(self, pid, name, text):
        fresh = self.folder / f".{name}-{pid}"
        fresh.write_text(text)
        fresh.replace(self.folder / f"{name}-{pid}")

    def end_soon(self, margin=MARGIN):
        """Let an endless job end with an epoch that no member has reached yet."""
        steps = -(-SAMPLES // GLOBAL)
        self.epochs = -(-(self.committed() + margin) // steps)
        fresh = self.folder / ".goal"
        fresh.write_text(str(self.epochs * steps))
        fresh.replace(self.folder / "goal")

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

    def formed(self):
        """Return the number of every generation, and when it was formed."""
        journal = Journal(self.folder / "journal.db")
        try:
            lines = [line for line in journal.incidents() if line["what"] == "generation"]
            return [(line["generation"], line["at"]) for line in lines]
        finally:
            journal.close()

    def committed(self):
        self.lines("commit")
        return self._top

    def wait(self, until, during=lambda: None, seconds=LIMIT):
        limit = time.monotonic() + seconds
        while not until():
            if time.monotonic() > limit:
                raise TimeoutError(f"{self.committed()} steps were committed")
            during()
            time.sleep(0.005)

    def finish(self, respawn=False, seconds=LIMIT):
        """Wait for all workers; with `respawn`, replace those that a signal ended. Return the exit codes."""
        codes = []

        def look():
            for _, code in self.reap():
                if code < 0 and respawn:
                    self.add()
                elif code >= 0:
                    codes.append(code)

        self.wait(lambda: not self.workers, look, seconds)
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
            "counts": bool(ends)
            and all(abs(c - self.epochs) < 1e-9 for line in ends for c in line["counts"])
            and all(line["off"] < 1e-9 for line in self.lines("epoch")),
            "replicas": all(len(group) == 1 for group in hashes.values()),
            "goodput": self.goodput(commits),
            "hash": sorted({line["hash"] for line in ends}),
            "generations": len(generations),
            "seconds": self.gaps(),
        }

    def goodput(self, commits):
        """Return committed samples / computed samples."""
        computed = sum(len(line["ids"]) for line in self.lines("shard"))
        kept = [x for x in self.lines("shard") if x["generation"] in commits.get(x["step"], ())]
        return round(sum(len(line["ids"]) for line in kept) / max(1, computed), 4)

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


def two_deaths(point, membership=DETERMINISTIC):
    """One of four workers is killed, and another one dies while the survivors leave, or enter their next group."""
    crew = Crew(4, membership, pause=0.02, epochs=None)
    try:
        crew.coordinate()
        for _ in range(4):
            crew.add()
        crew.wait(lambda: crew.whole(4))
        pids = crew.whole(4)
        crew.arm(pids[0], point)
        crew.kill(pids[2])
        crew.wait(lambda: not {pids[0], pids[2]} & set(crew.workers), crew.reap)
        crew.add()
        crew.wait(lambda: crew.whole(3))
        crew.end_soon()
        codes = crew.finish()
        return {**crew.judge(), "codes": codes, "survivors": {pids[1], pids[3]} <= set(crew.last())}
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


def torn(point):
    """The coordinator dies while it writes the second generation, or before anybody hears of it, and comes back."""
    crew = Crew(4, DETERMINISTIC, pause=0.02)
    try:
        crew.coordinate(fault=f"{point}:2:9")
        pids = [crew.add() for _ in range(4)]
        crew.wait(lambda: crew.committed() >= 4)
        crew.kill(pids[1])
        crew.lose_coordinator()
        kept = len(crew.groups())
        crew.coordinate()
        codes = crew.finish(respawn=True)
        return {**crew.judge(), "codes": codes, "kept": kept}
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


def twisted(rank):
    """One of four workers gets another number into its model, as a broken memory or library would do it."""
    compared, elastic_pace.COMPARED = elastic_pace.COMPARED, 10
    crew = Crew(4, DETERMINISTIC, pause=0.01, epochs=None)
    try:
        crew.coordinate()
        for _ in range(4):
            crew.add()
        crew.wait(lambda: crew.committed() >= 15 and crew.whole(4))
        victim = crew.whole(4)[rank]
        crew.slow(victim, "twist", 0.0)
        crew.wait(lambda: "differs" in crew.incidents())
        crew.end_soon()
        codes = crew.finish()
        bits = {}
        for line in crew.lines("commit"):
            bits.setdefault(line["step"], set()).add(line["hash"])
        wrong = sorted(step for step, seen in bits.items() if len(seen) > 1)
        agree = max(wrong) < max(bits) - 10 if wrong else True
        return {**crew.judge(), "codes": codes, "what": crew.incidents(), "wrong": len(wrong), "agree": agree}
    finally:
        elastic_pace.COMPARED = compared
        crew.close()


def needs(place):
    """One of four workers needs 3 s for one shard: in backward, for its data, or in a hang ("nowhere")."""
    crew = Crew(4, DETERMINISTIC, pause=0.02, epochs=None)
    try:
        crew.coordinate()
        for _ in range(4):
            crew.add()
        crew.wait(lambda: crew.committed() >= 8 and crew.whole(4))
        victim = crew.whole(4)[1]
        at = time.time()
        crew.slow(victim, place, 3.0)
        crew.wait(lambda: time.time() > at + 3.0 and crew.last()[victim]["at"] > at + 3.0)
        crew.end_soon()
        codes = crew.finish()
        times = sorted(x["at"] for x in crew.lines("commit") if x["member"].endswith(f"-{victim}"))
        gap = max(later - first for first, later in pairwise(times))
        return {**crew.judge(), "codes": codes, "what": crew.incidents(), "gap": gap}
    finally:
        crew.close()


def frozen_waiting():
    """A worker is stopped while it waits for its data."""
    crew = Crew(4, DETERMINISTIC, pause=0.02, epochs=None)
    try:
        crew.coordinate()
        for _ in range(4):
            crew.add()
        crew.wait(lambda: crew.committed() >= 8 and crew.whole(4))
        victim, generation = crew.whole(4)[1], crew.groups()[-1].generation
        crew.slow(victim, "data", 5.0)
        crew.wait(lambda: not (crew.folder / f"slow-{victim}").exists())
        at = time.time()
        os.kill(victim, signal.SIGSTOP)
        crew.wait(lambda: any(x["generation"] > generation for x in crew.last().values()))
        seconds = time.time() - at
        os.kill(victim, signal.SIGCONT)
        crew.wait(lambda: crew.last()[victim]["generation"] > generation)
        crew.end_soon()
        codes = crew.finish()
        return {**crew.judge(), "codes": codes, "waited": seconds}
    finally:
        crew.close()


def frozen_at(point):
    """The oldest member is stopped at a point after the death of another one, and goes on later."""
    crew = Crew(4, DETERMINISTIC, pause=0.02, epochs=None)
    try:
        crew.coordinate()
        for _ in range(4):
            crew.add()
        crew.wait(lambda: crew.committed() >= 8 and crew.whole(4))
        pids, generation, at = crew.whole(4), crew.groups()[-1].generation, time.time()
        crew.arm(pids[0], point, number=signal.SIGSTOP)
        crew.kill(pids[2])
        others = [pid for pid in pids if pid not in (pids[0], pids[2])]
        crew.wait(lambda: all(crew.last()[pid]["generation"] > generation for pid in others))
        seconds = min(crew.last()[pid]["at"] for pid in others) - at
        os.kill(pids[0], signal.SIGCONT)
        crew.wait(lambda: crew.last()[pids[0]]["generation"] > generation)
        crew.end_soon()
        codes = crew.finish()
        return {**crew.judge(), "codes": codes, "waited": seconds}
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
    "after a chunk": lambda: killed_at("after a chunk", victim=2),
    "after the reduction": lambda: killed_at("after the reduction", victim=1),
    "fast, after a chunk": lambda: killed_at("after a chunk", FAST, victim=1),
    "fast, after the reduction": lambda: killed_at("after the reduction", FAST),
    "after the result": lambda: killed_at("after the result", victim=1),
    "after the vote": lambda: killed_at("after the vote", victim=2),
    "after the update": lambda: killed_at("after the update", victim=3),
    "fast, after the vote": lambda: killed_at("after the vote", FAST),
    "down and up": down_and_up,
    "second death, leaving": lambda: two_deaths("while leaving"),
    "second death, entering": lambda: two_deaths("while entering"),
    "fast, second death": lambda: two_deaths("while leaving", FAST),
    "coordinator killed": coordinator_killed,
    "torn entry": lambda: torn("within the entry"),
    "entry nobody heard of": lambda: torn("after the entry"),
    "stopped": stopped,
    "slow backward": lambda: needs("backward"),
    "slow data": lambda: needs("data"),
    "twisted": lambda: twisted(2),
    "twisted, rank 0": lambda: twisted(0),
    "hangs": lambda: needs("nowhere"),
    "frozen, waiting for data": frozen_waiting,
    "frozen, entering": lambda: frozen_at("while entering"),
    "frozen, leaving": lambda: frozen_at("while leaving"),
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
