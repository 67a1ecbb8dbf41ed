"""Seconds from the death of one of four workers to the next commit, under paceline, torchrun and torchft.

One model of 1 M parameters, steps of about 30 ms. A worker is killed with SIGKILL at random times, and at named points
of its step (paceline only; the worker kills itself there), each rank in turn. A kill is timed from SIGKILL, or from the
end of the process, to the first commit of a later generation (paceline), or to the first step that was not made before
(torchrun, which loads its last checkpoint, one per ten steps). The CPU time that others used meanwhile stands beside;
kills with more than a quarter of the machine are shown, and repeated.

Four oracles judge the job: every sample once per epoch, by what members wrote down; a weight per sample that counts
its uses, after every epoch; equal bits of parameters, momentum and counts after every commit; and, with --verify, these
bits after every step of one worker that nobody disturbs (deterministic).

torchft (pip install 'paceline[peers]') has a worker per replica group, a restart of dead workers at once, and its
DistributedSampler, whose place every worker keeps after each batch, as its documentation recommends. It runs with its
defaults, which may take a minute per kill, and with short time-outs (SHORT).
A batch is lost if it was taken but never committed, and repeated if it was committed twice in an epoch.

    python benchmarks/recovery.py [--kills 64] [--deterministic] [--torchrun KILLS] [--torchft KILLS]
                                  [--torchft-defaults KILLS] [--seed 1] [--json FILE]
    python benchmarks/recovery.py --verify FILE      which --deterministic --json FILE has written
    python benchmarks/recovery.py --page docs/concepts/membership.md --from FILE --from FILE
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from harness import show

from paceline.comm.faults import STEP_POINTS
from paceline.measure.busy import CoreSeconds
from paceline.measure.stats.intervals import percentile

WORKERS, BATCH, SAMPLES = 4, 32, 4096
CHUNKS = 4  # parts of a sum on shm; a worker may die after any of them
LIMIT = 120.0  # seconds until a job has begun, or is whole again
BUSY = 0.25  # of the machine
PER_EPOCH = SAMPLES // BATCH // WORKERS  # batches of a worker


def make_model() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 700), nn.ReLU(), nn.Linear(700, 10))


def make_data() -> Any:
    import torch

    generator = torch.Generator().manual_seed(3)
    numbers = torch.randn(SAMPLES, 256, generator=generator)
    labels = torch.randint(10, (SAMPLES,), generator=generator)
    return torch.utils.data.TensorDataset(torch.arange(SAMPLES), numbers, labels)


class Digest:
    """A hash of the whole state: 64-bit words times odd numbers that belong to their places, added up."""

    def __init__(self) -> None:
        self._factors: dict[int, Any] = {}

    def of(self, tensors: list[Any]) -> int:
        import numpy as np

        total = 0
        for place, tensor in enumerate(tensors):
            raw = tensor.detach().numpy().reshape(-1)
            words = np.pad(raw, (0, raw.size % 2)).view(np.uint64) if raw.size % 2 else raw.view(np.uint64)
            if place not in self._factors:
                self._factors[place] = (
                    np.random.default_rng(place).integers(1 << 63, size=words.size, dtype=np.uint64) * 2 + 1
                )
            total += int(np.dot(words, self._factors[place]))
        return total & (1 << 64) - 1


def as_member(folder: Path, membership: str, batch: int, pause: float, last: int) -> None:
    """Train as a member of an elastic job until the driver ends it; write a line per shard, commit and epoch."""
    import torch
    from torch import nn

    import paceline
    from paceline.comm.faults import VARIABLE

    worker = paceline.join()
    model = make_model()
    model.register_parameter("uses", nn.Parameter(torch.zeros(SAMPLES)))
    groups = [{"params": [p for name, p in model.named_parameters() if name != "uses"], "lr": 0.01, "momentum": 0.9},
              {"params": [model.uses], "lr": 1.0}]  # fmt: skip
    optimizer = torch.optim.SGD(groups)
    pace = paceline.wrap(model, optimizer, membership=membership)
    log = (folder / f"log-{os.getpid()}").open("a", buffering=1)
    mine, digest = folder / f"fault-{os.getpid()}", Digest()
    per_epoch, total = SAMPLES // (WORKERS * BATCH), WORKERS * BATCH
    for ids, x, y in worker.batches(make_data(), batch_size=batch, epochs=last // per_epoch):
        if mine.exists():
            os.environ[VARIABLE] = mine.read_text()
            mine.unlink()
        step, generation, size, rank = pace.steps, pace._generation, worker.size, worker.rank
        print("shard", step + 1, generation, *ids.tolist(), file=log)
        loss = torch.nn.functional.cross_entropy(model(x), y) - total / len(ids) * model.uses[ids].sum()
        loss.backward()
        time.sleep(pause)
        if pace.step():
            at, kept = time.time(), [state["momentum_buffer"] for state in optimizer.state.values() if state]
            bits = digest.of([*(p for p in model.parameters()), *(tensor for tensor in kept if tensor is not None)])
            print("commit", at, pace.steps, generation, size, bits, rank, file=log)
            if pace.steps % per_epoch == 0:
                print("epoch", pace.steps, float((model.uses - pace.steps // per_epoch).abs().max()), file=log)
        if (folder / "stop").exists():
            os._exit(0)


def as_torchrun(folder: Path) -> None:
    """Train with DDP under torchrun, from the last checkpoint; write a line per step."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, data, kept = make_model(), make_data(), folder / "kept.pt"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = 0
    if kept.exists():
        state = torch.load(kept)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    ddp, life = DistributedDataParallel(model), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    log = (folder / f"log-{os.getpid()}").open("a", buffering=1)
    while not (folder / "stop").exists():
        place = 32 * (WORKERS * step + dist.get_rank()) % SAMPLES
        _, x, y = data[place : place + 32]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        time.sleep(0.016)
        optimizer.step()
        step += 1
        print("commit", time.time(), step, life, dist.get_world_size(), 0, dist.get_rank(), file=log)
        if step % 10 == 0 and dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / "fresh.pt")
            (folder / "fresh.pt").replace(kept)
    os._exit(0)


class Commit(NamedTuple):
    at: float
    step: int
    generation: int
    size: int
    bits: int
    rank: int
    pid: int


# Time-outs of torchft in seconds, and those of its coordinator in milliseconds. With join_timeout_ms=50 on a busy
# machine every step had another quorum of two of the four workers.
SHORT = {"timeout": 1.0, "quorum_timeout": 5.0, "connect_timeout": 1.0, "heartbeat_interval": 0.05}
SHORT_LIGHTHOUSE = {"join_timeout_ms": 1000, "quorum_tick_ms": 20, "heartbeat_timeout_ms": 1000}


def as_torchft(folder: Path, slot: int, lighthouse: str, *, short: bool) -> None:
    """Train as a replica group of one worker until the driver ends it; write a line per commit and per batch."""
    from datetime import timedelta

    import torch
    from torch.distributed import TCPStore

    _keep_on_loopback()
    from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo

    torch.set_num_threads(1)
    limits: dict[str, Any] = {name: timedelta(seconds=value) for name, value in SHORT.items()} if short else {}
    group = ProcessGroupGloo(timeout=limits["timeout"]) if short else ProcessGroupGloo()
    door = socket.create_server(("127.0.0.1", 0))
    port = door.getsockname()[1]
    group.store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=door.detach())
    model, data = make_model(), make_data()
    inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def load(state: Any) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    def save() -> Any:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    where = {"store_addr": "127.0.0.1", "store_port": port, "hostname": "127.0.0.1", "rank": 0, "world_size": 1}
    where |= {"lighthouse_addr": lighthouse, "replica_id": f"worker_{slot}"}
    manager = Manager(group, load, save, min_replica_size=1, **where, **limits)
    ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    sampler = DistributedSampler(data, slot, WORKERS, 0, 1, shuffle=True, seed=0)
    kept, log = folder / f"place-{slot}", (folder / f"log-{os.getpid()}").open("a", buffering=1)
    taken = (folder / f"batches-{slot}").open("a", buffering=1)
    epoch, place = map(int, kept.read_text().split()) if kept.exists() else (0, 0)
    while True:
        sampler.set_epoch(epoch)
        mine = list(sampler)
        while place * BATCH < len(mine):
            if (folder / "stop").exists():
                os._exit(0)
            _, x, y = data[mine[BATCH * place : BATCH * (place + 1)]]
            # The place is kept before the step: a batch whose worker dies is not taken again, as with a loader ahead.
            kept.write_text(f"{epoch} {place + 1}")
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(ddp(x), y).backward()
            time.sleep(0.016)
            before, counted = manager.current_step(), manager.is_participating()
            optimizer.step()
            done = manager.current_step() > before
            print(epoch, place, int(done and counted), file=taken)
            place += 1
            if done:
                size, number = manager.num_participants(), manager._quorum_id
                print("commit", time.time(), manager.current_step(), number, size, 0, slot, file=log)
        epoch, place = epoch + 1, 0


def _keep_on_loopback() -> None:
    """Make the servers of torchft listen on 127.0.0.1. By default they listen on all interfaces."""
    from http.server import ThreadingHTTPServer

    socket.gethostname = lambda: "127.0.0.1"  # torchft announces its servers by this name
    import torchft.checkpointing.http_transport as transport
    import torchft.manager as manager

    class Checkpoints(ThreadingHTTPServer):
        request_queue_size = 1024

        def __init__(self, address: tuple[str, int], handler: Any) -> None:
            super().__init__(("127.0.0.1", address[1]), handler)

    server = manager.ManagerServer
    transport._IPv6HTTPServer = Checkpoints  # type: ignore[attr-defined,assignment,misc]
    manager.ManagerServer = lambda **named: server(**{**named, "bind": "127.0.0.1:0"})  # type: ignore[assignment,misc]


def launch_torchft(folder: Path, *, short: bool) -> None:
    """Start the coordinator of torchft and its workers. Start a worker again when it has died."""
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, **(SHORT_LIGHTHOUSE if short else {}))
    address = f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}"
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        while not (folder / "stop").exists():
            for slot in range(WORKERS):
                if slot not in running or running[slot].poll() is not None:
                    words = [str(Path(__file__).resolve()), "as-torchft", str(folder), str(slot)]
                    words += [address, str(int(short))]
                    running[slot] = subprocess.Popen([sys.executable, *words])
            time.sleep(0.02)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
        lighthouse.shutdown()


def batches_of(folder: Path) -> dict[str, int]:
    """Count the batches under torchft that no committed step has used, and the second uses in an epoch."""
    lost = repeated = 0
    for path in folder.glob("batches-*"):
        uses: dict[tuple[str, ...], int] = {}
        for line in path.read_text().splitlines():
            *batch, counts = line.split()
            uses[tuple(batch)] = uses.get(tuple(batch), 0) + int(counts)
        epochs = sorted({int(epoch) for epoch, _ in uses})
        last = max(((int(epoch), int(place)) for epoch, place in uses), default=(0, -1))
        passed = [(epoch, place) for epoch in epochs for place in range(PER_EPOCH) if (epoch, place) < last]
        lost += sum(uses.get((str(epoch), str(place)), 0) == 0 for epoch, place in passed)
        repeated += sum(max(0, count - 1) for count in uses.values())
    return {"samples lost": BATCH * lost, "samples repeated": BATCH * repeated}


class Job:
    """A job under kills, with the lines that its workers write."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.folder = folder
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._output = (folder / "output").open("w")
        self.process = subprocess.Popen(
            command, env=environ, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )

        self._read: dict[Path, int] = {}
        self.commits: list[Commit] = []
        self.shards: dict[tuple[int, int], list[int]] = {}
        self.uses: list[float] = []

    def look(self) -> list[Commit]:
        """Read what workers have written since the last look; return all commits."""
        for path in self.folder.glob("log-*"):
            if (at := self._read.get(path, 0)) == path.stat().st_size:
                continue
            with path.open("rb") as stream:
                stream.seek(at)
                whole, newline, _ = stream.read().rpartition(b"\n")  # the last line of a killed process may be torn
            self._read[path] = at + len(whole) + len(newline)
            for kind, *words in map(str.split, whole.decode().splitlines()):
                if kind == "commit":
                    time_, *numbers = words
                    self.commits.append(Commit(float(time_), *map(int, numbers), int(path.name[4:])))
                elif kind == "shard":
                    step, generation, *ids = map(int, words)
                    self.shards.setdefault((step, generation), []).extend(ids)
                else:
                    self.uses.append(float(words[1]))
        return self.commits

    def whole(self, after: float) -> list[int]:
        """Wait until a group of all workers commits; return the pids of its workers by rank."""
        limit = time.time() + LIMIT
        while time.time() < limit:
            if self.process.poll() is not None:
                raise SystemExit(f"the job has ended: {(self.folder / 'output').read_text()[-2000:]}")
            recent = [line for line in self.look()[-50 * WORKERS :] if line.at > after]
            last = max((line.generation for line in recent), default=-1)
            ranks = {line.rank: line.pid for line in recent if line.generation == last and line.size == WORKERS}
            if len(ranks) == WORKERS:
                return [ranks[rank] for rank in range(WORKERS)]
            time.sleep(0.02)
        raise SystemExit(f"not all workers are back after {LIMIT:.0f} s")

    def close(self) -> None:
        (self.folder / "stop").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(3)
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        self._output.close()


def strike(job: Job, victim: int, point: str, dice: random.Random) -> float:
    """Kill a worker; return when."""
    handle = os.pidfd_open(victim)
    try:
        if not point:
            time.sleep(dice.uniform(0.0, 0.06))
            at = time.time()
            os.kill(victim, signal.SIGKILL)
            return at
        fresh = job.folder / f".fault-{victim}"
        fresh.write_text(f"{point}:{dice.randint(1, CHUNKS) if point == 'after a chunk' else 1}:9")
        fresh.replace(job.folder / f"fault-{victim}")
        select.select([handle], [], [], LIMIT)
        return time.time()
    finally:
        os.close(handle)


def wait_next(job: Job, at: float, before: tuple[int, int], *, by_step: bool) -> tuple[float, set[int]]:
    """Return when the first commit after a kill was made that is new, and the pids of those who made it."""
    generation, step = before
    limit = time.time() + LIMIT
    while time.time() < limit:
        recent = job.look()[-50 * WORKERS :]
        new = [
            line for line in recent if line.at > at and (line.step > step if by_step else line.generation > generation)
        ]
        if new:
            time.sleep(0.3)  # the others write their line, too
            first = min(new)
            return first.at, {line.pid for line in job.look() if line[1:3] == first[1:3]}
        time.sleep(0.005)
    raise SystemExit("no commit after a kill")


Kill = tuple[str, int]  # a point ("" being any moment) and a rank


def kills(job: Job, wanted: list[Kill], seed: int, *, by_step: bool, most: float) -> list[dict[str, Any]]:
    """Kill a worker for every entry of the list; a kill on a busy machine is repeated once."""
    dice, rows, after, left = random.Random(seed), [], 0.0, [(kill, 1) for kill in wanted]
    while left:
        (point, rank), tries = left.pop(0)
        pids = job.whole(after)
        time.sleep(dice.uniform(0.3, 0.8))
        cpu, ours, clock = CoreSeconds.now(), _spent(job), time.time()
        at = strike(job, pids[rank], point, dice)
        earlier = [line for line in job.look() if line.at <= at]
        before = max(line.generation for line in earlier), max(line.step for line in earlier)
        then, by = wait_next(job, at, before, by_step=by_step)
        spent, now = _spent(job), CoreSeconds.now()
        total = 0.0 if cpu is None or now is None else now.busy - cpu.busy
        busy = max(0.0, total - max(0.0, spent - ours)) / ((time.time() - clock) * (os.cpu_count() or 1))
        survivors = set(pids) - {pids[rank]}
        rows.append({"point": point or "any", "seconds": round(then - at, 4), "others": round(busy, 3),
                     "survivors": by_step or survivors <= by, "rank": rank})  # fmt: skip
        if busy > most and tries < 2:
            left.append(((point, rank), tries + 1))
        after = then
    return rows


def _spent(job: Job) -> float:
    """Return the CPU seconds of all processes of the session of a job and of sessions below it."""
    parents, spent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            words = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], spent[pid] = int(words[1]), sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid, seconds in spent.items():
        above = pid
        while above > 1 and above not in (job.process.pid, os.getpid()):
            above = parents.get(above, 0)
        total += seconds if above > 1 else 0.0
    return total


def oracles(job: Job) -> dict[str, bool]:
    """Judge a job: every step once, in one generation; every sample once per epoch; all members with the same bits."""
    groups: dict[int, set[int]] = {}
    bits: dict[int, set[int]] = {}
    for line in job.commits:
        groups.setdefault(line.step, set()).add(line.generation)
        bits.setdefault(line.step, set()).add(line.bits)
    per_epoch = SAMPLES // (WORKERS * BATCH)
    last = max(groups) - 1  # the last step may be torn by the end of the job
    once = all(len(groups.get(step, ())) == 1 for step in range(1, last))
    samples = once
    for first in range(1, last - per_epoch + 1, per_epoch):
        epoch = [ids for step in range(first, first + per_epoch) for ids in job.shards[step, min(groups[step])]]
        samples = samples and sorted(epoch) == list(range(SAMPLES))
    counted = bool(job.uses) and not any(job.uses)
    return {"every step once": once, "every sample once per epoch": samples, "counts of all epochs": counted,
            "same bits": all(len(values) == 1 for values in bits.values())}  # fmt: skip


def command_of(way: str, folder: Path, workers: int, batch: int, pause: float, last: int) -> list[str]:
    script = [str(Path(__file__).resolve())]
    if way == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
        return [*command, "--max-restarts=1000", *script, "as-torchrun", str(folder)]
    if way.startswith("torchft"):
        return [sys.executable, *script, way, str(folder)]
    command = [sys.executable, "-m", "paceline", "run", "-np", str(workers), "--membership", way, "--restart", "always"]
    command += ["--runs", str(folder / "runs"), "--", sys.executable]
    return [*command, *script, "as-member", str(folder), way, str(batch), str(pause), str(last)]


def measure(way: str, wanted: list[Kill], seed: int, most: float) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="paceline-recovery-"))
    job = Job(command_of(way, folder, WORKERS, BATCH, 0.008, 10**8), folder)
    try:
        rows = kills(job, wanted, seed, by_step=way == "torchrun", most=most)
    finally:
        job.close()
    lines = job.look()
    found = {"way": way, "kills": rows, "steps": max(line.step for line in lines), **losses(way, lines, folder)}
    if way.startswith("elastic"):
        found |= {"oracles": oracles(job), "bits": {line.step: line.bits for line in lines}}
    shutil.rmtree(folder)
    return found


def losses(way: str, lines: list[Commit], folder: Path) -> dict[str, int]:
    """Count the steps that were made again, and the samples that were lost or repeated in the final history.

    torchrun makes the steps after its last checkpoint again, from weights that have not seen them. What paceline has
    not committed is dealt again; a step that was committed in two generations would be a repetition.
    """
    again = len({(line.step, line.generation) for line in lines}) - len({line.step for line in lines})
    if way.startswith("torchft"):
        return {"redone": 0, **batches_of(folder)}
    if way == "torchrun":
        return {"redone": again, "samples lost": 0, "samples repeated": 0}
    steps = {line.step for line in lines}
    lacking = max(steps) - len(steps)
    return {"redone": 0, "samples lost": BATCH * WORKERS * lacking, "samples repeated": BATCH * WORKERS * again}


def verify(path: Path) -> bool:
    """Train as far with one worker that nobody disturbs; compare the bits after every step."""
    right, results = True, json.loads(path.read_text())
    for found in results:
        if "deterministic" not in found["way"]:
            continue
        per_epoch = SAMPLES // (WORKERS * BATCH)
        folder = Path(tempfile.mkdtemp(prefix="paceline-recovery-"))
        last = -(-max(map(int, found["bits"])) // per_epoch) * per_epoch
        job = Job(command_of(found["way"], folder, 1, WORKERS * BATCH, 0.0, last), folder)
        try:
            job.process.wait()
        finally:
            job.close()
        bits = {line.step: line.bits for line in job.look()}
        shutil.rmtree(folder)
        equal = sum(bits.get(int(step)) == seen for step, seen in found["bits"].items())
        found["same as undisturbed"] = [equal, len(found["bits"])]
        print(f"{found['way']}: bits of one undisturbed worker after {equal:,} of {len(found['bits']):,} steps")
        right = right and equal == len(found["bits"])
    path.write_text(json.dumps(results, indent=1) + "\n")
    return right


def row_of(found: dict[str, Any], point: str, most: float) -> list[str]:
    chosen = [kill for kill in found["kills"] if point in ("all", kill["point"]) and kill["others"] <= most]
    seconds = [kill["seconds"] for kill in chosen]
    cells = [f"{percentile(seconds, share):.3f}" for share in (0.5, 0.95, 1.0)] if seconds else ["", "", ""]
    return [found["way"], point, str(len(seconds)), *cells]


BEGIN, END = "<!-- recovery: from docs/records/chaos/ -->", "<!-- recovery: end -->"


def lines_of(results: list[dict[str, Any]], most: float = BUSY) -> list[str]:
    """Return a table in Markdown of kills on a quiet machine, and what the oracles say."""
    lines = ["| membership | killed | kills | p50 | p95 | longest |", "|---|---|---|---|---|---|"]
    for found in results:
        for point in ("all", "any", *STEP_POINTS):
            way, _, *cells = row_of(found, point, most)
            where = {"all": "**anywhere**", "any": "at any moment"}.get(point, point)
            lines.append(f"| `{way}` | {where} | {' | '.join(cells)} |")
    right = all(all(found["oracles"].values()) for found in results)
    busy = [kill["seconds"] for found in results for kill in found["kills"] if kill["others"] > most]
    same = [found["same as undisturbed"] for found in results if "same as undisturbed" in found]
    steps = sum(found["steps"] for found in results)
    said = f"{steps:,} steps; the ledger, the counts and the bits of all members are {'right' if right else 'WRONG'}."
    lines += ["", said]
    if busy:
        text = f"{len(busy)} more kills met a machine that others used by over {100 * most:.0f} %:"
        lines += [text, f"{min(busy):.3f} to {max(busy):.3f} s."]
    if same:
        lines.append(
            f"After all {same[0][1]:,} deterministic steps {same[0][0]:,} times the bits of an undisturbed worker."
        )
    return lines


def write_page(page: Path, files: list[Path]) -> None:
    """Replace what stands between the marks of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    results = [found for path in files for found in json.loads(path.read_text())]
    page.write_text(before + "\n".join([BEGIN, "", *lines_of(results), "", END]) + after)


def keep(path: Path, found: list[dict[str, Any]]) -> None:
    """Write a file for docs/records: without the bits of every step, which --verify has looked at."""
    path.write_text(
        json.dumps([{name: value for name, value in one.items() if name != "bits"} for one in found]) + "\n"
    )


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that jobs end with this process
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=64)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--torchrun", type=int, default=0, metavar="KILLS")
    parser.add_argument("--torchft", type=int, default=0, metavar="KILLS", help="with the shortest time-outs")
    parser.add_argument("--torchft-defaults", type=int, default=0, metavar="KILLS", help="may take a minute per kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--others", type=float, default=BUSY, help="share of the machine above which a kill is repeated"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--verify", type=Path, help="compare the bits of this file with those of one worker")
    parser.add_argument("--page", type=Path, help="write a table of the files of --from into this page")
    parser.add_argument("--keep", type=Path, help="write the files of --from into this one, without bits")
    parser.add_argument("--from", dest="files", type=Path, action="append")
    chosen = parser.parse_args()
    if chosen.page:
        write_page(chosen.page, chosen.files or [])
        return
    if chosen.keep:
        keep(chosen.keep, [found for path in chosen.files or [] for found in json.loads(path.read_text())])
        return
    if chosen.verify:
        sys.exit(0 if verify(chosen.verify) else 1)
    places = [(point, rank) for rank in range(WORKERS) for point in ("", *STEP_POINTS)]
    wanted = [places[k % len(places)] for k in range(chosen.kills)]
    results = []
    if wanted:
        way = "elastic(deterministic=true)" if chosen.deterministic else "elastic"
        results.append(measure(way, wanted, chosen.seed, chosen.others))
    if chosen.torchrun:
        dice = random.Random(chosen.seed)
        wanted = [("", dice.randrange(WORKERS)) for _ in range(chosen.torchrun)]
        results.append(measure("torchrun", wanted, chosen.seed, chosen.others))
    for way, count in (("torchft", chosen.torchft), ("torchft-defaults", chosen.torchft_defaults)):
        if count:
            dice = random.Random(chosen.seed)
            wanted = [("", dice.randrange(WORKERS)) for _ in range(count)]
            results.append(measure(way, wanted, chosen.seed, chosen.others))
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    rows = [row_of(found, point, chosen.others) for found in results for point in ("all", "any", *STEP_POINTS)
            if any(point in ("all", kill["point"]) for kill in found["kills"])]  # fmt: skip
    show(("under", "killed at", "kills", "p50", "p95", "max"), rows)
    for found in results:
        busy = [kill for kill in found["kills"] if kill["others"] > BUSY]
        print(f"{found['way']}: {len(busy)} kills on a busy machine: {[kill['seconds'] for kill in busy]}")
        judged = {name: found[name] for name in ("samples lost", "samples repeated")} | found.get("oracles", {})
        print(f"  steps {found['steps']}, made again {found['redone']}; "
              + ", ".join(f"{name}: {value}" for name, value in judged.items()))  # fmt: skip
        print(f"  survivors kept their processes: {all(kill['survivors'] for kill in found['kills'])}")
    sys.exit(0 if all(all(found.get("oracles", {}).values()) for found in results) else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["as-member"]:
        as_member(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6]))
    elif sys.argv[1:2] == ["as-torchrun"]:
        as_torchrun(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["as-torchft"]:
        as_torchft(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], short=sys.argv[5] == "1")
    elif sys.argv[1:2] in (["torchft"], ["torchft-defaults"]):
        launch_torchft(Path(sys.argv[2]), short=sys.argv[1] == "torchft")
    else:
        main()
