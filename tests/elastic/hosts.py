"""An elastic job on the hosts of a lab, whose links can be cut: what workers log, and how they are started."""

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

from paceline.cluster.lab.lab import Lab
from paceline.cluster.lab.network import Network
from paceline.elastic.launch import FOLDER, coordinator_command, kept_folder

SCRIPT = """
import hashlib, json, sys, time
import torch
import paceline
worker = paceline.join()
torch.manual_seed(1)
model = torch.nn.Linear(8, 4)
pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), membership="elastic(deterministic=true)")
log = open(sys.argv[1], "a", buffering=1)
for x in worker.batches([torch.randn(8) for _ in range(64)], batch_size=4, epochs=100000):
    model(x).pow(2).mean().backward()
    time.sleep(0.01)
    step, generation = pace.steps, pace._generation
    if pace.step():
        bits = hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest()[:16]
        line = {"at": time.time(), "step": step, "generation": generation, "size": worker.size, "bits": bits}
        print(json.dumps(line), file=log)
"""


class Cluster:
    """Four hosts with a worker each, and a coordinator on one of them."""

    def __init__(self, folder, network):
        self.folder, self.network = folder, network
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        self.job = kept_folder(folder / "job")
        self.processes = []

    def start(self, host, words, name):
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", FOLDER: str(self.job)}
        environ |= {"RANK": str(host), "WORLD_SIZE": "4", "GLOO_SOCKET_IFNAME": self.network.interface}
        environ["PACELINE_CHOICES"] = json.dumps({"comm": "tcp"})
        with (self.folder / f"{name}.err").open("w") as errors:
            command = [*self.network.prefix(host), *words]
            process = subprocess.Popen(command, env=environ, stderr=errors, start_new_session=True)
        self.processes.append(process)

    def coordinate(self, host):
        command = coordinator_command(
            self.job, start=4, least=1, most=4, task=50, rule="tcp", interface=self.network.address(host)
        )
        self.start(host, command, "coordinator")

    def work(self, host):
        self.start(host, [sys.executable, str(self.script), str(self.folder / f"{host}.log")], f"worker-{host}")

    def lines(self, host):
        path = self.folder / f"{host}.log"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def errors(self, host):
        return (self.folder / f"worker-{host}.err").read_text()

    def wait(self, until, seconds=90):
        limit = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < limit, [self.errors(host)[-500:] for host in range(4)]
            time.sleep(0.02)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()


@contextmanager
def cluster(folder, coordinator):
    with ExitStack() as stack:
        made = Cluster(folder, stack.enter_context(Network(Lab(hosts=4))))
        stack.callback(made.close)
        made.coordinate(coordinator)
        for host in range(4):
            made.work(host)
        yield made


def cut_and_heal(folder, *, victim, coordinator, seconds):
    """Cut a host off for some seconds; return what both sides did, and the seconds until all train together again."""
    with cluster(folder, coordinator) as made:
        made.wait(lambda: all(len(made.lines(host)) > 20 and made.lines(host)[-1]["size"] == 4 for host in range(4)))
        made.network.cut(victim)
        cut = time.time()
        time.sleep(seconds)
        made.network.heal(victim)
        healed = time.time()
        far = [victim] if coordinator != victim else [host for host in range(4) if host != victim]
        near = [host for host in range(4) if host not in far]

        def together():
            return all(any(x["at"] > healed and x["size"] == 4 for x in made.lines(host)) for host in range(4))

        made.wait(together)
        lines = {host: made.lines(host) for host in range(4)}
        first = [next(x["at"] for x in lines[host] if x["at"] > healed and x["size"] == 4) for host in far]
        back = [next(x["at"] for x in lines[host] if x["at"] > healed) for host in far]
        on = min(x["at"] for host in near for x in lines[host] if x["at"] > cut + 1.0)
        commits, bits = {}, {}
        for line in (line for mine in lines.values() for line in mine):
            commits.setdefault(line["step"], set()).add(line["generation"])
            bits.setdefault(line["step"], set()).add(line["bits"])
        return {
            "near": sum(cut + 1.0 < x["at"] < healed for host in near for x in lines[host]),
            "far": sum(cut + 1.0 < x["at"] < healed for host in far for x in lines[host]),
            "goes on after": round(on - cut, 2),
            "rejoins after": round(max(back) - healed, 2),
            "all together after": round(max(first) - healed, 2),
            "says so": all("waits for a group" in made.errors(host) for host in far),
            "once": all(len(generations) == 1 for generations in commits.values()),
            "replicas": all(len(kinds) == 1 for kinds in bits.values()),
            "gap": sorted(set(range(max(commits) + 1)) - set(commits)),
        }


if __name__ == "__main__":
    import tempfile
    from pathlib import Path

    for place, coordinator in (("on the majority's side", 0), ("on the cut host", 3)):
        with tempfile.TemporaryDirectory() as folder:
            seen = cut_and_heal(Path(folder), victim=3, coordinator=coordinator, seconds=float(sys.argv[1]))
            print(f"coordinator {place}: {json.dumps(seen)}", flush=True)
