import subprocess
import sys

import pytest

import paceline
from tests.report.samples import record


def test_public_names_are_these():
    values = [
        "Chunk",
        "Cluster",
        "Cursor",
        "Graph",
        "Layout",
        "Link",
        "Mixing",
        "Pace",
        "PacelineError",
        "Place",
        "Plan",
        "Profile",
        "Record",
        "Refused",
        "Run",
        "Slot",
        "StepProfile",
        "Suite",
        "View",
        "Window",
        "Worker",
        "Workload",
        "__version__",
    ]
    calls = [
        "allgather",
        "allreduce",
        "allreduce_",
        "broadcast",
        "broadcast_",
        "broadcast_optimizer_state",
        "broadcast_parameters",
        "comm_hook",
        "compose",
        "hierarchical_neighbor_allreduce",
        "hierarchical_neighbor_allreduce_",
        "join",
        "log",
        "neighbor_allgather",
        "neighbor_allreduce",
        "neighbor_allreduce_",
        "open_store",
        "outlook",
        "pair_gossip",
        "records",
        "replayed",
        "run_ranks",
        "sampler",
        "settle",
        "window",
        "wrap",
        "write_report",
    ]
    families = [
        "compressors",
        "exchanges",
        "memberships",
        "models",
        "race",
        "rules",
        "schedules",
        "sources",
        "topologies",
    ]
    assert paceline.__all__ == values + sorted(calls + families)
    for name in paceline.__all__:
        assert getattr(paceline, name) is not None


def test_a_family_is_exported_with_its_menu():
    assert str(paceline.schedules.MENU.make("fusion(mb=8)")) == "fusion(mb=8)"
    assert "mlp" in paceline.models.MENU.names()


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'wrapp'"):
        _ = paceline.wrapp


LISTING = """
import sys
from paceline import comm
from paceline.cluster import launchers
from paceline.workload import models
from paceline.strategy import compressors, exchanges, memberships
from paceline.train import references
from paceline.workload import sources
from paceline.strategy import rules, schedules, topologies
for family in (comm, compressors, exchanges, launchers, memberships, models, references, rules, topologies):
    assert family.MENU.names()
for family in (schedules, sources):
    assert family.MENU.names()
settings = {"fake": "cpu", "queue": "fake", "zmq": "tcp://127.0.0.1:5555"}
for family in (compressors, exchanges, memberships, rules, schedules, sources):
    for name in family.MENU.names():
        family.MENU.make(name if family is not sources else f"{name}({settings.get(name, 'folder')})")
import paceline.engine.dispatch
"""
HELP = """
import sys
from paceline.cli import main
try:
    main({words!r})
except SystemExit as end:
    assert not end.code, end.code
"""
RECORDS = (
    ["list", "--runs", "."],
    ["show", "a.json"],
    ["compare", "a.json", "b.json"],
    ["report", "a.json", "b.json"],
)
NO_TORCH = "\nassert 'torch' not in sys.modules, 'torch was loaded'\n"


@pytest.mark.parametrize(
    "code",
    [
        LISTING,
        "import sys, paceline",
        *(
            HELP.format(words=words)
            for words in (
                ["--help"],
                ["run", "--help"],
                ["lab", "--help"],
                ["explain", "--model", "resnet50", "-np", "4"],
                ["strategies"],
                ["doctor"],
                ["models"],
                ["reproduce", "tensorpack", "--runs", "nowhere"],
            )
        ),
        *(HELP.format(words=words) for words in RECORDS),
    ],
    ids=[
        *("menus", "import", "help", "run-help", "lab-help", "explain", "strategies", "doctor", "models", "reproduce"),
        *(words[0] for words in RECORDS),
    ],
)
def test_what_needs_no_torch_loads_none(code, tmp_path):
    for name, start in (("a", 1), ("b", 2)):
        (tmp_path / f"{name}.json").write_text(record(start=start).to_json())
    command = [sys.executable, "-c", code + NO_TORCH]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_check_for_torch_can_fail():
    done = subprocess.run(
        [sys.executable, "-c", "import sys, paceline.api.join" + NO_TORCH], capture_output=True, timeout=60
    )
    assert done.returncode != 0


def test_join_stays_a_function_whatever_is_used_first():
    code = (
        "import paceline; paceline.wrap; import paceline.api.collectives; assert callable(paceline.join), paceline.join"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
