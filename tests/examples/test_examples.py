"""Every example is short, and the training loop of the README works in all three ways of starting it."""

import os
import re
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = str(EXAMPLES / "train_my_model.py")
PACELINE = [sys.executable, "-c", "from paceline.cli import main; main()"]
WAYS = {
    "alone": [sys.executable],
    "run": [*PACELINE, "run", "-np", "2", "--", sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
}


@dataclass(frozen=True)
class Outcome:
    """What one start of the example printed and saved."""

    loss: float
    steps: int
    checksums: dict[str, str]
    saved: dict[str, torch.Tensor]


def start(way: list[str], place: Path) -> Outcome:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    environ |= {"OMP_NUM_THREADS": "1", "PACELINE_RUNS": str(place.parent / "runs")}
    argv = [*way, SCRIPT, str(place)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    [(steps, loss)] = re.findall(r"loss after (\d+) steps: ([\d.]+)", done.stdout)
    # Both ranks of torchrun write to one pipe, unbuffered: a line and its end are two writes, with others between them.
    checksums = re.findall(r"rank (\d) of \d: parameters ([0-9a-f]{8})", done.stdout)
    assert len(checksums) == len(dict(checksums)), f"a rank reported twice: {done.stdout}"
    return Outcome(float(loss), int(steps), dict(checksums), torch.load(place))


def untrained_loss() -> float:
    example = runpy.run_path(SCRIPT)
    x, y = example["make_dataset"]().tensors
    return (example["make_model"]()(x) - y).square().mean().item()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    return {name: start(way, folder / f"{name}.pt") for name, way in WAYS.items()}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_has_at_most_60_lines(path):
    assert len(path.read_text().splitlines()) <= 60


@pytest.mark.multi
def test_two_ranks_give_the_same_under_run_and_under_torchrun(outcomes):
    assert outcomes["run"].loss == outcomes["torchrun"].loss
    assert outcomes["run"].checksums == outcomes["torchrun"].checksums


@pytest.mark.multi
@pytest.mark.parametrize("way", WAYS)
def test_all_ranks_end_with_the_same_parameters(outcomes, way):
    ranks = {"alone": ["0"]}.get(way, ["0", "1"])
    assert sorted(outcomes[way].checksums) == ranks
    assert len(set(outcomes[way].checksums.values())) == 1


@pytest.mark.multi
def test_two_ranks_learn_what_one_rank_learns_on_the_same_samples(outcomes):
    # The same 80 global batches, but halves are added in another order, which shows in the last digits of float32.
    assert outcomes["alone"].steps == outcomes["run"].steps == 80
    assert outcomes["run"].loss == pytest.approx(outcomes["alone"].loss, rel=1e-4)
    assert outcomes["alone"].loss < 0.1 * untrained_loss()


@pytest.mark.multi
@pytest.mark.parametrize("way", WAYS)
def test_the_saved_parameters_have_the_users_own_keys(outcomes, way):
    example = runpy.run_path(SCRIPT)
    model = example["make_model"]()
    assert list(outcomes[way].saved) == list(model.state_dict())
    model.load_state_dict(outcomes[way].saved)
    assert example["checksum"](model) == outcomes[way].checksums["0"]


def test_the_checksum_sees_one_changed_number():
    example = runpy.run_path(SCRIPT)
    model = example["make_model"]()
    before = example["checksum"](model)
    with torch.no_grad():
        model[0].bias[3] += 1e-6
    assert example["checksum"](model) != before
