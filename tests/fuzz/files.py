"""Targets that read files: shards, snapshots, links, traces, hosts, certificates and journals."""

import io
import json
import math
import zlib
from functools import cache

import torch

from paceline.cluster.hosts import MOST_SLOTS, mapped, read_cluster, read_hostfile, read_hosts
from paceline.elastic.journal import Journal
from paceline.elastic.protocol import Group
from paceline.files.snapshot import MAGIC, Snapshot
from paceline.forecast.calibrate import of_file
from paceline.forecast.certificate import Certificate, Checked, read_certificate
from paceline.forecast.fabric import Fabric, Line
from paceline.forecast.links import with_link
from paceline.forecast.machines import read_machines
from paceline.workload import sources
from paceline.workload.layouts import layout_of
from paceline.workload.tfrecord.example import encode
from paceline.workload.tfrecord.frames import write
from paceline.workload.tfrecord.shards import INDEX, Shard, write_index
from tests.fuzz import mutate

FIELDS = [{"dtype": "float32", "shape": [1, 2, 2]}, {"dtype": "int64", "shape": []}]


def shards(dice, folder):
    """A data set whose index or records are damaged gives the right tensors, or an error."""
    made = []
    for number in range(2):
        path = folder / f"train-{number:05d}-of-00002"
        rows = [encode({"0": bytes(16), "1": k.to_bytes(8, "little")}) for k in range(6)]
        with path.open("wb") as stream:
            offsets = write(stream, rows)
        made.append(Shard(path, path.stat().st_size, tuple(offsets)))
    write_index(folder, {"train": made}, FIELDS, 10)
    index = folder / INDEX
    if dice.random() < 0.6:
        index.write_text(json.dumps(mutate.tree(dice, json.loads(index.read_text()))))
    else:
        chosen = dice.choice((index, made[0].path))
        chosen.write_bytes(mutate.bytes_of(dice, chosen.read_bytes()))
    source = sources.MENU.make(f"tfrecord({folder}, lanes=2)")
    fit = source.fit()
    assert all(type(value) is int and value >= 0 for value in fit.values())
    order = source.order(2, 1)
    parts = source.samples_of(None)(order.ids(0, 0))
    assert [len(part) for part in parts] == [2] * len(parts)


STATE = {
    "model": {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.int64)},
    "list": [1, 2.5, None, "x", float("nan")],
    3: (b"bytes", True),
}


@cache
def _snapshot():
    stream = io.BytesIO()
    Snapshot(STATE).write(stream)
    return stream.getvalue()


def snapshots(dice, folder):
    """A damaged snapshot is refused; one with a forged header runs no code and allocates nothing that is not there."""
    data = _snapshot()
    if dice.random() < 0.5:
        data = mutate.bytes_of(dice, data)
    else:
        length = int.from_bytes(data[8:16], "little")
        header = json.dumps(mutate.tree(dice, json.loads(data[24 : 24 + length]))).encode()
        start = MAGIC + len(header).to_bytes(8, "little") + zlib.crc32(header).to_bytes(8, "little")
        data = start + header + data[24 + length :]
    path = folder / "rank-0.snapshot"
    path.write_bytes(data)
    Snapshot.load(path)


NCCL = """# nThread 1 nGpus 2 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#  Rank  0 Group  0 Pid   1 on a device  0 [0x00] V100
#  Rank  1 Group  0 Pid   1 on a device  1 [0x00] V100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    12.50    0.00    0.00      0    12.30    0.00    0.00      0
        1024           256     float     sum      -1    14.50    0.07    0.07      0    14.30    0.07    0.07      0
     1048576        262144     float     sum      -1   154.50    6.79    6.79      0   154.30    6.79    6.79      0
"""


def links(dice, folder):
    path = folder / "link"
    if dice.random() < 0.5:
        text = mutate.bytes_of(dice, NCCL.encode())
        number = dice.choice(("12.50", "1024 ", "154.50", "262144", "#  Rank  1"))
        text = text.replace(number.encode(), dice.choice(mutate.NUMBERS).encode()) if dice.random() < 0.5 else text
    else:
        line = {"latency": 1e-5, "bandwidth": 1e9}
        values = dice.choice((line, {"link": line}, {"network": {"measured": line}}))
        text = json.dumps(mutate.tree(dice, values)).encode()
    path.write_bytes(text)
    fabric, said = with_link(Fabric(2, 2, Line(1e-6, 1e10), Line(1e-5, 1e9)), path)
    assert 0 <= fabric.between.latency < math.inf
    assert 0 < fabric.between.bandwidth < math.inf
    assert len(said) < 1_000


@cache
def _trace():
    tensors = len(layout_of("mlp"))
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    events = [{"name": "ProfilerStep#3", "ts": 0, "dur": 1000, "cat": "user_annotation"}]
    events += [{"name": node, "ts": 300 + 10 * k, "dur": 5} for k in range(tensors)]
    events += [{"name": "torch::autograd::AccumulateGrad", "ts": 306 + 10 * k, "dur": 2} for k in range(tensors)]
    events += [{"cat": "cuda_runtime", "name": "l", "ts": 300 + k, "args": {"correlation": k}} for k in range(4)]
    events += [{"cat": "kernel", "name": "k", "ts": 301 + k, "dur": 9, "args": {"correlation": k}} for k in range(4)]
    return {"schemaVersion": 1, "traceEvents": events}


def traces(dice, folder):
    path = folder / "trace.json"
    values = mutate.tree(dice, _trace())
    if dice.random() < 0.3:  # one odd event among many is found rarely by chance
        event = dice.choice(_trace()["traceEvents"])
        key = dice.choice(list(event))
        values = {**_trace(), "traceEvents": [*_trace()["traceEvents"], {**event, key: dice.choice(mutate.ODD)}]}
    text = json.dumps(values).encode()
    path.write_bytes(mutate.bytes_of(dice, text) if dice.random() < 0.2 else text)
    profile = of_file(path, "mlp").profile
    assert all(0 <= seconds < math.inf for seconds in (*profile.ready, *profile.forward, profile.backward))
    assert 0 < profile.step < math.inf


def machines(dice, folder):
    fields = {"nodes": "2", "ranks": "8", "device": "V100", "bandwidth": "25gbit", "latency": "20us", "inside": "9GB"}
    fields |= {"oversubscription": "2", "jitter": "0.1", "slow": "1", "slowness": "2", "price": "3", "comm": "nccl"}
    odd = (*mutate.NUMBERS, "9e99gbit", "1e-300us", "0gbit", "5", "5 gbit", "x", "1e308GB", "1e-320s", "٣gbit")
    chosen = {name: fields[name] for name in dice.sample(list(fields), dice.randint(0, 6))}
    for name in dice.sample(list(fields), dice.randint(0, 2)):
        chosen[name] = dice.choice(odd)
    text = f"machines({', '.join(f'{name}={value}' for name, value in chosen.items())})"
    found = read_machines(text if dice.random() < 0.9 else mutate.member(dice))
    fabric = found.fabric()
    for line in (fabric.inside, fabric.between):
        assert 0 <= line.latency < math.inf
        assert 0 < line.bandwidth < math.inf
    assert 0 <= found.jitter < math.inf
    assert found.assumptions()


HOSTS = "a slots=2\nb:2\n# c\n[::1] slots = 1\nme@d:4\n"
CLUSTER = """interface = "lo"
python = "python3"
[[hosts]]
name = "a"
slots = 2
environ = { X = "1" }
[[hosts]]
name = "b"
slots = 2
port = 22
user = "me"
"""


def hosts(dice, folder):
    """Hosts that are read have a name, slots, and nothing that ssh would take for an option."""
    path = folder / "hosts"
    kind = dice.randrange(4)
    if kind == 0:
        path.write_bytes(mutate.bytes_of(dice, HOSTS.encode()))
        found = read_hostfile(path)
    elif kind == 1:
        lines = CLUSTER.splitlines()
        at = dice.choice([k for k, line in enumerate(lines) if "=" in line])
        odd = (*mutate.NUMBERS, '"-oProxyCommand=x:y"', '"-x"', '""', '"a b"', "[]", "{}", '"é"', '"x\\ny"', "-1")
        lines[at] = lines[at].partition("=")[0] + "= " + dice.choice(odd)
        text = "\n".join(lines).encode()
        path.write_bytes(mutate.bytes_of(dice, text) if dice.random() < 0.3 else text)
        found = read_cluster(path)
    elif kind == 2:
        found = read_hosts(mutate.bytes_of(dice, b"a:2,b:2,me@c").decode(errors="replace"))
    else:
        found = read_hosts("a:2,b:2")
        ranks = "\n".join(f"rank {k}={'ab'[k % 2]}" for k in range(4))
        path.write_bytes(mutate.bytes_of(dice, ranks.encode()))
    for host in found:
        assert 1 <= host.slots <= MOST_SLOTS
        assert 0 <= host.port <= 65535
        assert not any(word.startswith("-") for word in (host.name, host.user, host.address))
        assert not set(host.name + host.user) & set(" \n\t;|&$`'\"\\")
    by = dice.choice(("slot", "node", "0,1,1,0", f"rankfile:{path}", "9" * 30, mutate.text(dice)))
    assert len(mapped(found, 4, by)) == 4


@cache
def _certificate():
    rows = [
        Checked(f"r{k}", "lab", "g", f"s{k}", "mlp", 4, 1e8, 100.0 + k, 99.0 + k, 101.0 + k, 98.0 + k, 120.0)
        for k in range(6)
    ]
    return json.loads(Certificate(tuple(rows), "m", "t", ("n",)).to_json())


def certificates(dice, folder):
    path = folder / "certificate.json"
    text = json.dumps(mutate.tree(dice, _certificate())).encode()
    path.write_bytes(mutate.bytes_of(dice, text) if dice.random() < 0.2 else text)
    found = read_certificate(path)
    assert "nan" not in found.sentence()
    assert "inf" not in found.sentence().replace("interval", "")
    for value in (found.rank_correlation(), found.regret(), *(found.interval() or ())):
        assert value is None or math.isfinite(value)


def journals(dice, folder):
    """A damaged journal is refused when it is opened or read, and never gives a generation that was not written."""
    path = folder / "journal.db"
    journal = Journal(path)
    for number in range(1, 4):
        journal.begin(Group(number, ("a", "b"), 10 * number, ("b",)))
    journal.note({"what": "died", "member": "a"})
    journal.close()
    for file in folder.glob("journal.db*"):
        data = bytearray(file.read_bytes())
        for _ in range(dice.randint(0, 6)):
            if data:
                data[dice.randrange(len(data))] = dice.randrange(256)
        file.write_bytes(data if dice.random() < 0.8 else mutate.bytes_of(dice, bytes(data)))
    journal = Journal(path)
    try:
        found = journal.groups()
        assert journal.last() == (found[-1] if found else None)
        assert journal.watermark() >= 0
        assert all(isinstance(incident, dict) for incident in journal.incidents())
        journal.rollbacks()
        assert all(row.at >= 0 for row in journal.history())
        assert journal.pid_of("a") >= 0
        journal.mark(9, 100)
        for group in found:
            assert group.steps >= 0
            assert all(isinstance(member, str) for member in (*group.members, *group.fresh))
    finally:
        journal.close()


FILES = (shards, snapshots, links, traces, machines, hosts, certificates, journals)
