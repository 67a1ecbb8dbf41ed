"""Seconds from the death of one of four workers to the next commit, under paceline, torchrun and torchft.

One model of 1 M parameters, steps of about 30 ms. A worker is killed with SIGKILL at random times, and at named points
of its step (paceline only; the worker kills itself there). A kill is timed from SIGKILL, or from the end of the
process, to the first commit of a later generation (paceline), or to the first step that was not made before (torchrun,
which loads its last checkpoint, one per ten steps). The CPU time that others used meanwhile stands beside; kills with
more than a quarter of the machine are shown, and repeated.

torchft (pip install 'paceline[peers]') has a worker per replica group, a restart of dead workers at once, and its
DistributedSampler, whose place every worker keeps after each batch, as its documentation recommends. It runs with its
defaults, which may take a minute per kill, and with short time-outs (SHORT).
A batch is lost if it was taken but never committed, and repeated if it was committed twice in an epoch.

    python benchmarks/recovery.py [--kills 64] [--deterministic] [--torchrun KILLS] [--torchft KILLS]
                                  [--torchft-defaults KILLS] [--seed 1] [--json FILE]
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
import zlib
from pathlib import Path
from typing import Any

from harness import show

from paceline.measure.busy import CoreSeconds
from paceline.measure.stats.intervals import percentile

WORKERS = 4
POINTS = ("before send", "after the result", "after the vote", "after the update")
LIMIT = 120.0  # seconds until a job has begun, or is whole again
BUSY = 0.25  # of the machine
PER_EPOCH = 4096 // 32 // WORKERS  # batches of a worker


def make_model() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 700), nn.ReLU(), nn.Linear(700, 10))


def make_data() -> Any:
    import torch

    generator = torch.Generator().manual_seed(3)
    numbers = torch.randn(4096, 256, generator=generator)
    return torch.utils.data.TensorDataset(numbers, torch.randint(10, (4096,), generator=generator))


def checksum(model: Any) -> int:
    return sum(zlib.crc32(p.detach().numpy().tobytes()) for p in model.parameters())


def as_member(folder: Path, membership: str) -> None:
    """Train as a member of an elastic job until the driver ends it; write a line per commit."""
    import torch

    import paceline
    from paceline.train.faults import VARIABLE

    worker = paceline.join()
    model = make_model()
    pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), membership=membership)
    log = (folder / f"log-{os.getpid()}").open("a", buffering=1)
    mine = folder / f"fault-{os.getpid()}"
    for x, y in worker.batches(make_data(), batch_size=32, epochs=100_000):
        if mine.exists():
            os.environ[VARIABLE] = mine.read_text()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        time.sleep(0.008)
        generation, size = pace._generation, worker.size
        if pace.step():
            bits = checksum(model) if pace.steps % 5 == 0 else 0
            print(time.time(), pace.steps, generation, size, bits, file=log)
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
        place = 32 * (WORKERS * step + dist.get_rank()) % 4096
        x, y = data[place : place + 32]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        time.sleep(0.016)
        optimizer.step()
        step += 1
        print(time.time(), step, life, dist.get_world_size(), 0, file=log)
        if step % 10 == 0 and dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / "fresh.pt")
            (folder / "fresh.pt").replace(kept)
    os._exit(0)


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
        while place * 32 < len(mine):
            if (folder / "stop").exists():
                os._exit(0)
            x, y = data[mine[32 * place : 32 * place + 32]]
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
                bits = checksum(model) if manager.current_step() % 5 == 0 else 0
                size, number = manager.num_participants(), manager._quorum_id
                print(time.time(), manager.current_step(), number, size, bits, file=log)
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
    return {"samples lost": 32 * lost, "samples repeated": 32 * repeated}


class Job:
    """A job under kills, with the lines that its workers write."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.folder = folder
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._output = (folder / "output").open("w")
        self.process = subprocess.Popen(
            command, env=environ, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )

    def lines(self) -> list[tuple[float, int, int, int, int, int]]:
        """Return time, step, generation, size, checksum and pid of every commit, in the order of time."""
        seen = []
        for path in self.folder.glob("log-*"):
            for text in path.read_text().splitlines():
                words = text.split()
                if len(words) == 5:
                    at, *numbers = words
                    seen.append((float(at), *map(int, numbers), int(path.name[4:])))
        return sorted(seen)

    def whole(self, after: float) -> list[int]:
        """Wait until a group of all workers commits; return the pids of its workers."""
        limit = time.time() + LIMIT
        while time.time() < limit:
            if self.process.poll() is not None:
                raise SystemExit(f"the job has ended: {(self.folder / 'output').read_text()[-2000:]}")
            lines = [line for line in self.lines() if line[0] > after]
            last = max((line[2] for line in lines), default=-1)
            pids = {line[5] for line in lines if line[2] == last and line[3] == WORKERS}
            if len(pids) == WORKERS:
                return sorted(pids)
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


def strike(job: Job, pids: list[int], point: str, dice: random.Random) -> tuple[float, int]:
    """Kill one of the workers; return when, and its pid."""
    victim = dice.choice(pids)
    handle = os.pidfd_open(victim)
    try:
        if not point:
            time.sleep(dice.uniform(0.0, 0.06))
            at = time.time()
            os.kill(victim, signal.SIGKILL)
            return at, victim
        fresh = job.folder / f".fault-{victim}"
        fresh.write_text(f"{point}:1:9")
        fresh.replace(job.folder / f"fault-{victim}")
        select.select([handle], [], [], LIMIT)
        return time.time(), victim
    finally:
        os.close(handle)


def wait_next(job: Job, at: float, before: tuple[int, int], *, by_step: bool) -> tuple[float, set[int]]:
    """Return when the first commit after a kill was made that is new, and the pids of those who made it."""
    generation, step = before
    limit = time.time() + LIMIT
    while time.time() < limit:
        new = [line for line in job.lines() if line[0] > at and (line[1] > step if by_step else line[2] > generation)]
        if new:
            time.sleep(0.3)  # the others write their line, too
            first = min(new)
            return first[0], {line[5] for line in job.lines() if line[1:3] == first[1:3]}
        time.sleep(0.005)
    raise SystemExit("no commit after a kill")


def kills(job: Job, points: list[str], seed: int, *, by_step: bool, most: float) -> list[dict[str, Any]]:
    """Kill a worker for every point of the list, "" being any moment; a kill on a busy machine is repeated once."""
    dice, rows, after, left = random.Random(seed), [], 0.0, list(points)
    while left:
        point = left.pop(0)
        pids = job.whole(after)
        time.sleep(dice.uniform(0.3, 0.8))
        lines = job.lines()
        cpu, ours, clock = CoreSeconds.now(), _spent(job), time.time()
        at, victim = strike(job, pids, point, dice)
        earlier = [line for line in lines if line[0] <= at] + [line for line in job.lines() if line[0] <= at]
        before = max(line[2] for line in earlier), max(line[1] for line in earlier)
        then, by = wait_next(job, at, before, by_step=by_step)
        spent, now = _spent(job), CoreSeconds.now()
        total = 0.0 if cpu is None or now is None else now.busy - cpu.busy
        busy = max(0.0, total - max(0.0, spent - ours)) / ((time.time() - clock) * (os.cpu_count() or 1))
        survivors = set(pids) - {victim}
        rows.append({"point": point or "any", "seconds": round(then - at, 4), "others": round(busy, 3),
                     "survivors": by_step or survivors <= by, "rank": pids.index(victim)})  # fmt: skip
        if busy > most and len(points) > len(rows) - len(points):
            left.append(point)
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


def ledger(lines: list[tuple[float, int, int, int, int, int]]) -> dict[str, bool]:
    """Judge commits: every step once, in one generation; all members with the same bits."""
    groups: dict[int, set[int]] = {}
    bits: dict[int, set[int]] = {}
    for _, step, generation, _, check, _ in lines:
        groups.setdefault(step, set()).add(generation)
        bits.setdefault(step, set()).add(check)
    last = max(groups) - 1  # the last step may be torn by the end of the job
    once = all(len(groups.get(step, ())) == 1 for step in range(1, last))
    return {"every step once": once, "same bits": all(len(values) == 1 for values in bits.values())}


def measure(way: str, points: list[str], seed: int, most: float) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="paceline-recovery-"))
    script = [str(Path(__file__).resolve())]
    if way == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
        command += ["--max-restarts=1000", *script, "as-torchrun", str(folder)]
    elif way.startswith("torchft"):
        command = [sys.executable, *script, way, str(folder)]
    else:
        command = [sys.executable, "-m", "paceline", "run", "-np", str(WORKERS), "--membership", way]
        command += ["--restart", "always", "--", sys.executable, *script, "as-member", str(folder), way]
    job = Job(command, folder)
    try:
        rows = kills(job, points, seed, by_step=way == "torchrun", most=most)
        lines = job.lines()
    finally:
        job.close()
    found = {"way": way, "kills": rows, "steps": max(line[1] for line in lines), **losses(way, lines, folder)}
    found |= {} if way == "torchrun" else ledger(lines)
    shutil.rmtree(folder)
    return found


def losses(way: str, lines: list[tuple[float, int, int, int, int, int]], folder: Path) -> dict[str, int]:
    """Count the steps that were made again, and the samples that were lost or repeated in the final history.

    torchrun makes the steps after its last checkpoint again, from weights that have not seen them. What paceline has
    not committed is dealt again; a step that was committed in two generations would be a repetition.
    """
    again = len({(line[1], line[2]) for line in lines}) - len({line[1] for line in lines})
    if way.startswith("torchft"):
        return {"redone": 0, **batches_of(folder)}
    if way == "torchrun":
        return {"redone": again, "samples lost": 0, "samples repeated": 0}
    steps = {line[1] for line in lines}
    lacking = max(steps) - len(steps)
    return {"redone": 0, "samples lost": 32 * WORKERS * lacking, "samples repeated": 32 * WORKERS * again}


def row_of(found: dict[str, Any], point: str, most: float) -> list[str]:
    chosen = [kill for kill in found["kills"] if point in ("all", kill["point"]) and kill["others"] <= most]
    seconds = [kill["seconds"] for kill in chosen]
    cells = [f"{percentile(seconds, share):.3f}" for share in (0.5, 0.95, 1.0)] if seconds else ["", "", ""]
    return [found["way"], point, str(len(seconds)), *cells]


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
    chosen = parser.parse_args()
    places = ["", *POINTS]
    points = [places[k % len(places)] for k in range(chosen.kills)]
    results = []
    if points:
        way = "elastic(deterministic=true)" if chosen.deterministic else "elastic"
        results.append(measure(way, points, chosen.seed, chosen.others))
    if chosen.torchrun:
        results.append(measure("torchrun", [""] * chosen.torchrun, chosen.seed, chosen.others))
    for way, kinds in (("torchft", chosen.torchft), ("torchft-defaults", chosen.torchft_defaults)):
        if kinds:
            results.append(measure(way, [""] * kinds, chosen.seed, chosen.others))
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    rows = [row_of(found, point, chosen.others) for found in results for point in ("all", "any", *POINTS)
            if any(point in ("all", kill["point"]) for kill in found["kills"])]  # fmt: skip
    show(("under", "killed at", "kills", "p50", "p95", "max"), rows)
    for found in results:
        busy = [kill for kill in found["kills"] if kill["others"] > BUSY]
        print(f"{found['way']}: {len(busy)} kills on a busy machine: {[kill['seconds'] for kill in busy]}")
        named = ("samples lost", "samples repeated", "every step once", "same bits")
        print(f"  steps {found['steps']}, made again {found['redone']}; "
              + ", ".join(f"{name}: {found[name]}" for name in named if name in found))  # fmt: skip
        print(f"  survivors kept their processes: {all(kill['survivors'] for kill in found['kills'])}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["as-member"]:
        as_member(Path(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:2] == ["as-torchrun"]:
        as_torchrun(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["as-torchft"]:
        as_torchft(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], short=sys.argv[5] == "1")
    elif sys.argv[1:2] in (["torchft"], ["torchft-defaults"]):
        launch_torchft(Path(sys.argv[2]), short=sys.argv[1] == "torchft")
    else:
        main()
