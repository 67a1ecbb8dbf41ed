"""A class or module name that occurs twice in the package is in a table with the reason, so no twin is accidental."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import paceline

ROOT = Path(paceline.__file__).parent
EVERYWHERE = ("__init__", "__main__", "traits")  # one in every folder, or in every family
VERB = "the verb, and the module that does its work"

CLASSES = {
    "Channel": "messages of an agent; an exchange bound to a comm",
    "Contender": "a contender as text; a contender in a process",
    "Field": "contenders that answer one question; a tensor in a block of a stream",
    "Handler": "of a socket; of an HTTP request, as http.server calls it",
    "Interval": "a confidence interval; its bar in a chart",
    "Job": "processes of a launcher; a job of a forecast",
    "Kind": "abilities of a comm; the subject of a field",
    "Line": "a connection of tcp; a wire of a forecast; a line of a chart",
    "Lines": "output of a worker; a chart of lines",
    "Link": "a connection of the coordinator; a measured link",
    "Queue": "between ranks in shared memory; the source",
    "Rate": "in a record; of learning",
    "Ring": "the topology; blocks of a stream in shared memory",
    "Row": "of the table of net; of a published table; of a chart",
    "Server": "the rule; a server of objects",
    "Window": "the library call; the exchange",
    "_Reader": "of bytes; of tokens",
}
MODULES = {
    "advise": VERB,
    "board": "the Board of each comm",
    "compare": VERB,
    "doctor": VERB,
    "elastic": "the worker of an elastic job; the membership",
    "explain": VERB,
    "feed": "batches of a rank; batches from another process",
    "fields": "contenders that answer one question; fields of a run",
    "figures": "of a network sweep; of a record",
    "frames": "of the token protocol; of the coordinator; of TFRecord files",
    "job": "workers of one host; a job of a forecast",
    "join": "the library call; the verb",
    "lab": VERB,
    "lines": "connections of tcp; a chart",
    "net": "the verb; its drawing",
    "places": "where workers start; where shards lie",
    "process": "of a worker; forked children",
    "queue": "between ranks in shared memory; the source",
    "race": VERB,
    "report": VERB,
    "reproduce": VERB,
    "rerun": VERB,
    "ring": "the topology; blocks of a stream in shared memory",
    "run": "the verb; the description of a run",
    "serve": "loop of a parameter server; a server of objects",
    "shards": "virtual shards of a step; files of a data set",
    "strategies": "the verb; the table that it prints",
    "timeline": "simulated; drawn",
    "topology": "the verb; its drawing",
    "turns": "the task of a shared start; the order of cells; the loop of a rank",
    "watch": "the verb; hooks that time layers",
    "weights": "of a topology in words; compared among ranks",
    "window": "the library call; the exchange",
    "wording": "of a forecast; of a verdict",
    "worker": "the entry point of a rank: of net; of a run",
}


def twins(names):
    places = defaultdict(list)
    for name, path in names:
        places[name].append(path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


@cache
def classes(root):
    return [
        (node.name, str(path.relative_to(root)))
        for path in sorted(root.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]


def modules(root):
    return [
        (path.stem, str(path.relative_to(root))) for path in sorted(root.rglob("*.py")) if path.stem not in EVERYWHERE
    ]


def unexplained(found, intended):
    return {name: paths for name, paths in found.items() if name not in intended}


def test_a_class_name_occurs_once_or_has_a_reason():
    assert unexplained(twins(classes(ROOT)), CLASSES) == {}, "rename one of them, or give the reason in CLASSES"


def test_a_module_name_occurs_once_or_has_a_reason():
    assert unexplained(twins(modules(ROOT)), MODULES) == {}, "rename one of them, or give the reason in MODULES"


def test_the_tables_name_only_twins():
    stale = [*(CLASSES.keys() - twins(classes(ROOT))), *(MODULES.keys() - twins(modules(ROOT)))]
    assert stale == [], "take them out of the table"


def test_an_accidental_twin_would_be_seen(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tool.py").write_text("class Chisel:\n    pass\n")
    paths = ["one/tool.py", "two/tool.py"]
    assert unexplained(twins(classes(tmp_path)), CLASSES) == {"Chisel": paths}
    assert unexplained(twins(modules(tmp_path)), MODULES) == {"tool": paths}
