"""Our compressors as comm hooks on stock DDP, with real processes over gloo."""

import json
import sys
from pathlib import Path

import pytest

import paceline
from paceline.api.ddp_hook import merged
from paceline.errors import WrongCommand
from tests import forked

SCRIPT = Path(__file__).with_name("hooked.py")


@pytest.mark.multi
@pytest.mark.usefixtures("forks")
def test_hooks_train_on_stock_ddp(tmp_path):
    out = tmp_path / "found.json"
    done = forked.paceline("run", "-np", 2, "--", sys.executable, SCRIPT, out)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert "the gradient of 0.weight is not finite" in found.pop("nan")
    assert found["none"]["apart"] < 1e-6, "without a compressor it is DDP's own mean"
    assert found["cast"]["apart"] < 0.05
    for text, one in found.items():
        assert one["same"], f"{text}: replicas differ"
        assert sum(one["losses"][-4:]) < sum(one["losses"][:4]), text
        names = ["0.bias", "0.weight", "2.bias", "2.weight"]  # DDP deals buckets anew; residuals follow
        assert one["kept"] == (names if text.startswith("feedback") else [])


def test_a_hook_needs_a_process_group():
    with pytest.raises(WrongCommand, match="there is no process group yet"):
        paceline.comm_hook("sign")


def test_states_of_buckets_are_one_by_name():
    found = merged([{"memory": {"a": 1}, "inner": {}}, {"memory": {"a": 2, "b": 3}}])
    assert found == {"memory": {"a": 1, "b": 3}, "inner": {}}
