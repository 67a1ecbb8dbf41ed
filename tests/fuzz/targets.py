"""What is fuzzed: each target makes an input, gives it to paceline and looks whether the answer can be true.

An error of paceline.errors is a good answer. Anything else that is raised, and a value that cannot be, is a failure.
"""

import gzip
import json
import math
import os
from functools import cache
from pathlib import Path

from paceline.cli.listing import _row
from paceline.cli.show import shown
from paceline.comm.position import position
from paceline.errors import WrongCommand
from paceline.measure.record.events import read_events
from paceline.measure.record.experiment import read_experiment
from paceline.measure.record.store import open_store
from paceline.menu.grammar import LONGEST, parse
from paceline.race.compare import compare
from paceline.race.contenders import parse_contender
from paceline.race.plan import plan
from paceline.race.results.fields import fields_of
from paceline.race.results.verdict import verdicts
from paceline.race.suite import read_suite
from paceline.report import plots, tables
from paceline.report.page import sections
from paceline.report.trace import chrome_trace, one_step, to_json
from paceline.run.compose.compose import compose
from paceline.run.compose.flags import check_variables
from paceline.run.run import Run
from paceline.strategy import compressors, exchanges, rules, schedules, topologies
from paceline.types import View
from paceline.workload import profile as profiles
from paceline.workload import sources
from paceline.workload.sources._idxfile import look
from tests.fuzz import mutate
from tests.fuzz.files import FILES
from tests.fuzz.messages import MESSAGES
from tests.report.samples import cell, events, record

MENUS = (compressors.MENU, exchanges.MENU, rules.MENU, schedules.MENU, sources.MENU, topologies.MENU)


def grammar(dice, folder):
    """What can be read prints as something that reads as the same."""
    text = dice.choice((mutate.text, mutate.member, _long))(dice)
    found = parse(text)
    assert len(text) <= LONGEST
    assert parse(str(found)) == found


def _long(dice):
    pieces = ("a(" * 60, "b=c,", "a", " ", "(", "," * 100, ")" * 60)
    return "".join(dice.choice(pieces) * dice.randint(1, 4_000) for _ in range(3))


def members(dice, folder):
    menu = dice.choice(MENUS)
    text = _near_member(dice, menu) if dice.random() < 0.8 else mutate.member(dice)
    found = menu.make(text)
    assert str(menu.make(str(found))) == str(found)


def _near_member(dice, menu):
    word = dice.choice(menu.names())
    values = [dice.choice((*mutate.NUMBERS[:12], *mutate.WORDS[:14])) for _ in range(dice.randint(0, 2))]
    return f"{word}({', '.join(values)})" if values else word


def runs(dice, folder):
    """A run with odd settings is composed or refused."""
    fields = dice.sample(sorted(Run.model_fields), dice.randint(1, 3))
    given = {}
    for name in fields:
        kind = str(Run.model_fields[name].annotation)
        odd = dice.choice((-1, 0, 1, 2, 3, 2**31, 2**63, 10**30))
        small = dice.choice((float("nan"), float("inf"), -1.0, 0.0, 0.5, 1e308))
        given[name] = odd if "int" in kind else small if "float" in kind else _setting(dice, name)
    found = compose(_run(given)).axes
    assert found is None or found.rule


def _setting(dice, name):
    if name in ("memory_format", "precision", "compile"):
        return Run.model_fields[name].default
    return mutate.member(dice) if dice.random() < 0.5 else dice.choice(mutate.NUMBERS)


def _run(given):
    return Run.model_validate(given)


def contenders(dice, folder):
    text = dice.choice(("", "half: ", "--rule ")) + mutate.text(dice, marks="()=, -:'")
    found = parse_contender(text)
    assert found.choices
    found.run(Run())


SUITE = """name = "s"
contenders = ["allreduce", "half: allreduce,compress=cast(bf16)"]
models = ["mlp"]
workers = [1, 2]
batch_sizes = [8]
rounds = 2
minutes = 1.5
seed = 3
notes = ["n"]

[[published]]
text = "1.5"
workers = 2

[run]
steps = 4
warmup = 2
deadline = 60.0
"""


def suites(dice, folder):
    """What is read can be planned or refused, and has a number of cells that can be run."""
    path = folder / "suite.toml"
    path.write_bytes(_toml(dice, SUITE))
    found = plan(read_suite(str(path)))
    assert 0 < len(found.cells) <= 50_000
    assert found.suite.minutes is None or 0 < found.suite.minutes < math.inf
    assert found.suite.seed >= 0


def _toml(dice, text):
    if dice.random() < 0.3:
        return mutate.bytes_of(dice, text.encode())
    lines = text.splitlines()
    at = dice.choice([k for k, line in enumerate(lines) if "=" in line])
    value = dice.choice(
        (*mutate.NUMBERS, "[]", "{}", '""', "[0]", "[-1]", "[[1]]", "1979-05-27", '"' + "y" * 5_000 + '"')
    )
    lines[at] = lines[at].partition("=")[0] + "= " + value
    return "\n".join(lines).encode()


EXPERIMENT = 'description = "d"\nservers = 2\nexpected = { rate = 430, tolerance = 0.05 }\n[data]\nobjects = 3\n'


def experiments(dice, folder):
    path = folder / "experiment.toml"
    path.write_bytes(_toml(dice, EXPERIMENT))
    found = read_experiment(path)
    assert found.expected is None or 0 <= found.expected.tolerance < math.inf


@cache
def _records():
    """A record with every part that a reader looks at, one of a race, one that failed, and one of an older race."""
    whole = record(
        "wfbp",
        series={"warmup": [0.1], "seconds": [0.1] * 15, "dropped_blocks": 1, "why": "", "judged": True},
        communication={"exposed": 0.1, "overlapped": 0.1, "in_flight": 0.2, "share": 0.1, "ratio": "10:1"},
        replicas={"identical": False, "distance": 0.5},
        network={"requested": {"lab": "lab(hosts=2)"}, "goodput": [1e6, 1e6]},
        incidents=[{"what": "skipped", "count": 2}],
        experiment={"compared": [{"what": "rate", "expected": 1.0, "measured": 2.0, "verdict": "above"}]},
        accuracy=[{"epoch": 1, "value": 0.5, "loss": 1.0, "samples": 100}, {"value": 0.6, "loss": 1, "samples": 9}],
        efficiency={
            "value": 0.9,
            "low": 0.8,
            "high": 1.0,
            "confidence": 0.95,
            "baseline": "x",
            "speedup": {"value": 1.8, "low": 1.6, "high": 2.0},
        },
    ).to_json()
    coded = json.loads(whole)
    coded["bytes"] |= {f"{when}_compression_per_step": [1.0, 2.0] for when in ("before", "after")}
    coded["resources"] |= {f"{what}_seconds_per_step": [0.1, 0.2] for what in ("encode", "decode")}
    coded["resources"] |= {"cpu_use": [0.5, 0.5], "flops": {"peak_is": "measured", "utilization": [0.1, 0.2]}}
    failed = record(verdict="failed", failure="it died", rate={}, step={}, breakdown={}, bytes={}, resources={})
    return [
        coded,
        json.loads(failed.to_json()),
        json.loads(cell("allreduce").to_json()),
        json.loads(record().to_json()),
    ]


def records(dice, folder):
    """A damaged record is left out with a reason; one that is listed can be shown and stands in a report."""
    path = folder / "r.json"
    values = dice.choice(_records())
    if dice.random() < 0.2:
        path.write_bytes(mutate.bytes_of(dice, json.dumps(values, indent=1).encode()))
    else:
        path.write_text(json.dumps(mutate.tree(dice, values), indent=1))
    (folder / "good.json").write_text(json.dumps(_records()[2]))
    store, brief = open_store([folder]), open_store([folder], without="profile")
    assert {stored.record.id for stored in store.records} == {stored.record.id for stored in brief.records}
    assert all(skip.why and "\n" not in skip.why and len(skip.why) < 2_000 for skip in store.skipped)
    for stored in store.records:
        assert "nan" not in _row(stored)[3]
        assert list(shown(stored.record))
    _report([stored.record for stored in store.records])


def _report(found):
    """All of a report but the drawing, which takes long."""
    assert sections.runs(found)
    assert sections.environments(found)
    list(sections.notes(found, [], fields_of(found)))
    for field in fields_of(found):
        assert field.title
        assert all(judged.headline for judged in verdicts(field))
        assert sections.spoken(field)
        list(sections.topologies(field))
        tables.scaling(field)
        tables.throughput(field, field.standings)
        for workers in field.worlds:
            plots.breakdown(field.at(workers), workers)
    with_rates = [one for one in found if one.verdict != "failed" and one.rate]
    if len(with_rates) > 1:
        try:
            compare(with_rates[:1], with_rates[1:2])
        except WrongCommand:
            pass


def event_files(dice, folder):
    path = folder / "r.events.jsonl"
    lines = [[rank, *event] for rank, of_rank in enumerate(events(steps=2, chunks=2)) for event in of_rank]
    if dice.random() < 0.5:
        lines = mutate.tree(dice, lines)
    text = "\n".join(json.dumps(line) for line in lines).encode()
    path.write_bytes(mutate.bytes_of(dice, text))
    ranks = read_events(path)
    spans = one_step(ranks)
    assert all(math.isfinite(span.start) and math.isfinite(span.stop) for span in spans)
    to_json(chrome_trace(record(), ranks))


PROFILE = {
    "schema": 1,
    "model": "mlp",
    "batch_size": 8,
    "layout": [{"name": "a", "numel": 4}, {"name": "b", "numel": 2}],
    "itemsize": 4,
    "forward": [0.0, 0.1],
    "forward_seconds": 0.2,
    "ready": [0.1, 0.2],
    "backward": 0.3,
    "step": 0.6,
    "link": {"latency": 1e-5, "bandwidth": 1e9},
}


def profile_files(dice, folder):
    path = folder / "profile.json"
    values = (
        PROFILE if dice.random() < 0.7 else {"run": {}, "profile": PROFILE, "network": {"measured": PROFILE["link"]}}
    )
    text = json.dumps(mutate.tree(dice, values) if dice.random() < 0.8 else values).encode()
    path.write_bytes(mutate.bytes_of(dice, text) if dice.random() < 0.3 else text)
    found = profiles.read(path)
    assert all(0 <= seconds < math.inf for seconds in (*found.ready, *found.forward, found.backward, found.step))
    found.measured_link()


def graphs(dice, folder):
    """The weights of every rank sum to one, and a graph that says so keeps the mean."""
    path = folder / "graph.txt"
    size = dice.randint(2, 9)
    weight = dice.choice(("", " 0.25", " 0.1", f" {dice.choice(mutate.NUMBERS)}"))
    lines = [f"{rank} {(rank + 1) % size}{weight}" for rank in range(size)]
    lines += [f"{dice.choice(mutate.NUMBERS)} {dice.choice(mutate.NUMBERS)}"] * (dice.random() < 0.2)
    path.write_bytes(mutate.bytes_of(dice, "\n".join(lines).encode()))
    settings = dice.choice(("", ", directed=true", ", uniform=true"))
    found = topologies.MENU.make(f"graph({path}{settings})")
    rows = [found.row(rank, View(rank, found.size), 0) for rank in range(found.size)]
    for row in rows:
        assert abs(row.keep + sum(weight for _, weight in row.sources) - 1) < 1e-4
    if found.doubly_stochastic(found.size):
        columns = [row.keep for row in rows]
        for row in rows:
            for source, weight in row.sources:
                columns[source] += weight
        assert all(abs(column - 1) < 1e-6 for column in columns)


def idx_files(dice, folder):
    """A file that is read gives exactly what its header promises."""
    sizes = dice.choice(((3, 4, 4), (1, 1, 1), (0, 4, 4), (2**32 - 1, 2**16, 2**16), (5, 2, 3)))
    data = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in sizes)
    data += bytes(min(math.prod(sizes), 1_000))
    if dice.random() < 0.4:
        data = mutate.bytes_of(dice, data)
    packed = dice.random() < 0.5
    data = gzip.compress(data) if packed else data
    path = folder / f"train-images-idx3-ubyte{'.gz' if packed else ''}"
    path.write_bytes(mutate.bytes_of(dice, data) if dice.random() < 0.3 else data)
    labels = bytes([0, 0, 8, 1]) + sizes[0].to_bytes(4, "big") + bytes(min(sizes[0], 100))
    (folder / "train-labels-idx1-ubyte").write_bytes(mutate.bytes_of(dice, labels) if dice.random() < 0.3 else labels)
    file = look(path, 3)
    assert len(file.read()) == math.prod(file.sizes)
    sources.MENU.make(f"idx({folder})").fit()


def environments(dice, folder):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "PACELINE_SERVERS", "OMP_NUM_THREADS", "PACELINE_FLOPS")
    environ = {name: dice.choice(mutate.NUMBERS) for name in names if dice.random() < 0.2}
    where = position(environ)
    assert 0 <= where.rank < where.all
    assert where.size >= 1
    assert where.servers >= 0
    assert where.local_rank >= 0
    check_variables(Run(), environ)
    assert 1 <= int(environ.get("OMP_NUM_THREADS", 1)) <= 4096
    assert int(environ.get("PACELINE_FLOPS", 0)) >= 0


def odd_places(dice, folder):
    """What is no regular file of a sane size is refused by whoever reads files."""
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    (folder / "loop.json").symlink_to(folder / "loop.json")
    with (folder / "huge.json").open("wb") as file:
        file.truncate(1 << 40)
    name = dice.choice(("pipe.json", "folder.json", "loop.json", "huge.json", "none.json", "x" * 300, "a\0b"))
    path = dice.choice((folder / name, Path("/dev/zero"), Path("/proc/self/mem")))
    reader = dice.choice(
        (
            lambda: open_store([folder]).skipped or None,
            lambda: profiles.read(path),
            lambda: read_experiment(path),
            lambda: topologies.MENU.make(f"graph({path})"),
            lambda: look(path, 3),
            lambda: read_suite(f"{path}.toml" if dice.random() < 0.5 else str(path)),
        )
    )
    found = reader()
    assert isinstance(found, tuple), "it was read"


TARGETS = {
    target.__name__: target
    for target in (
        *(grammar, members, runs, contenders, suites, experiments, records, event_files, profile_files),
        *(graphs, idx_files, environments, odd_places, *FILES, *MESSAGES),
    )
}
