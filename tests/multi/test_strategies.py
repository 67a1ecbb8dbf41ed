"""Every strategy trains small_cnn with real processes; examples give the values that theory says."""

import json
import sys
from pathlib import Path

import pytest

from paceline.run.compose.compose import servers_of
from paceline.run.run import Run
from paceline.run.strategies import STRATEGIES
from tests.forked import paceline

HERE = Path(__file__).parent
SERVED = [name for name in STRATEGIES if servers_of(Run(workers=8, strategy=name))]
OTHERS = [name for name in STRATEGIES if name not in SERVED]
pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("forks")]


def run(*words):
    return paceline("run", *words)


def check(found, strategy):
    loss = found["loss"]
    assert sum(loss[-5:]) < 0.8 * sum(loss[:5])
    if STRATEGIES[strategy].same_result:
        assert found["replicas"]["identical"]
    else:
        assert found["replicas"]["distance"] < 0.2, "replicas have parted"


@pytest.mark.parametrize(
    ("strategy", "size", "nodes"),
    [
        ("hierarchical_neighbor_allreduce", 4, "2x2"),
        ("push_sum", 4, "2x2"),
        *(pytest.param(name, 8, "2x4", marks=pytest.mark.slow) for name in SERVED),
    ],
)
def test_a_run_trains_and_its_record_says_so(strategy, size, nodes, tmp_path):
    path = tmp_path / "r.json"
    words = ["-np", size, "--nodes", nodes, "--strategy", strategy, "--model", "small_cnn", "--batch-size", "8"]
    done = run(*words, "--optimizer", "sgd(lr=0.05)", "--steps", "10", "--repeats", "3", "--json", path)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(path.read_text())
    check(record, strategy)
    assert len(record["rate"]["per_worker"]) == size
    if strategy == "hierarchical_neighbor_allreduce":  # inside the node, and with the same place of the other one
        edges = record["bytes"]["per_edge"]
        pairs = {(a, b) for a in range(4) for b in range(4) if edges[a][b]}
        assert pairs == {(a, b) for a in range(4) for b in range(4) if (a // 2 == b // 2) != (a % 2 == b % 2)}
    changes = any("changes convergence" in note for note in record["notes"])
    assert changes != STRATEGIES[strategy].same_result


@pytest.fixture(scope="module")
def of_eight(tmp_path_factory):
    """What every strategy without server processes gave on eight ranks: started once, trained in turn."""
    out = tmp_path_factory.mktemp("eight") / "found.json"
    done = run("-np", 8, "--", sys.executable, HERE / "every.py", out, "2x4", *OTHERS)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.timeout(550)
@pytest.mark.parametrize("strategy", OTHERS)
def test_eight_ranks_train_with_every_strategy(strategy, of_eight):
    check(of_eight[strategy], strategy)


@pytest.mark.parametrize("comm", ["shm", pytest.param("gloo", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("exchange", "rule", "size"), [("hierarchical(2x2)", "grad", 4), ("neighbor(one_peer(exp2))", "atc", 4)]
)
def test_counted_bytes_of_a_real_run_are_the_declared_ones(exchange, rule, size, comm, tmp_path):
    path = tmp_path / "r.json"
    words = ["-np", size, "--nodes", "2x2", "--exchange", exchange, "--rule", rule, "--comm", comm, "--schedule", "bsp"]
    words += ["--model", "mlp", "--batch-size", "4", "--steps", "4", "--repeats", "1", "--warmup", "1", "--json", path]
    done = run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(path.read_text())
    model = 4 * 670_730
    edges = record["bytes"]["per_edge"]
    if rule == "atc":  # one-peer: exactly one model
        assert [sum(row) for row in edges] == [model] * 4
        return
    between = sum(edges[a][b] for a in range(4) for b in range(4) if a // 2 != b // 2)
    # M/4 + M/4 per rank between nodes; gradients carry 6 flags, and parts are cut at 16 bytes
    assert between / 4 == pytest.approx(model / 2, rel=1e-4)


def values(tmp_path, script, size, *words):
    out = tmp_path / "v.json"
    done = run("-np", size, "--", sys.executable, f"examples/{script}.py", *words, "--json", out)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


def test_consensus_on_exp2_takes_the_known_first_step(tmp_path):
    found = values(tmp_path, "consensus", 4, "--topology", "exp2", "--steps", 1)
    assert found["values"] == pytest.approx([5 / 3, 4 / 3, 1, 2], abs=1e-15)
    assert found["history"][0] == [0, 1, 2, 3]


@pytest.mark.parametrize("phase", [1, *(pytest.param(phase, marks=pytest.mark.slow) for phase in (0, 2))])
def test_one_peer_is_the_exact_mean_after_three_steps_from_any_phase(phase, tmp_path):
    found = values(tmp_path, "consensus", 8, "--topology", "one_peer(exp2)", "--steps", 3, "--phase", phase)
    assert found["values"] == [3.5] * 8


@pytest.mark.parametrize("topology", ["star", "grid"])
def test_irregular_graphs_converge_to_the_true_mean(topology, tmp_path):
    found = values(tmp_path, "consensus", 4, "--topology", topology, "--steps", 150, "--start", "5,1,2,4")
    assert found["values"] == pytest.approx([3.0] * 4, abs=1e-9)


def test_push_sum_corrects_uniform_weights_on_a_star(tmp_path):
    found = values(tmp_path, "consensus", 4, "--topology", "star", "--uniform", "--push-sum", "--steps", 150)
    assert found["values"] == pytest.approx([1.5] * 4, abs=1e-9)


def test_uniform_weights_on_a_star_are_refused():
    done = run("-np", 3, "--", sys.executable, "examples/consensus.py", "--topology", "star", "--uniform")
    assert done.returncode == 2
    assert "wrong mean" in done.stderr


def test_exact_diffusion_is_refused_on_a_directed_graph():
    script = [sys.executable, "examples/quadratics.py", "--rule", "exact_diffusion", "--topology", "one_way_ring"]
    done = run("-np", 4, "--", *script)
    assert done.returncode == 2
    assert "diverges on a directed graph" in done.stderr


@pytest.mark.slow
def test_quadratics_reach_the_optimum_where_averaging_keeps_a_bias(tmp_path):
    words = ["--topology", "ring", "--lr", 0.1, "--steps", 300]
    for rule in ("exact_diffusion", "gradient_tracking"):
        assert values(tmp_path, "quadratics", 4, "--rule", rule, *words)["values"] == pytest.approx([3.0] * 4, abs=1e-8)
    biased = values(tmp_path, "quadratics", 4, "--rule", "atc", *words)["values"]
    assert max(abs(value - 3.0) for value in biased) > 1e-2
