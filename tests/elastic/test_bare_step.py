"""In an elastic job backward leaves no mean gradient: p.grad and a bare optimizer.step() are refused in words."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("bare_step.py")


@pytest.mark.multi
def test_p_grad_and_a_bare_optimizer_step_are_refused_and_training_goes_on(tmp_path):
    launch = [sys.executable, "-m", "paceline", "run", "-np", "2", "--membership", "elastic", "--", sys.executable]
    done = subprocess.run([*launch, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for seen in (one, two):
        assert len(seen["refused"]) >= 3 * 6
        for name, problem in seen["refused"]:
            what = "optimizer.step()" if name == "step" else "on p.grad"
            assert f"{what} with membership elastic" in problem
            assert "try: pace.step(), with clip_norm=" in problem
        assert seen["steps"] == 6
        assert seen["lr"] == pytest.approx(0.1 * 0.1**3)
    assert one["weights"] == two["weights"]
    torch.manual_seed(3)
    start = torch.nn.Linear(4, 1, dtype=torch.float64).bias.item()
    rates = [0.1 * 0.1 ** (step // 2) for step in range(6)]  # the gradient of the bias is 1 in every step
    assert start - one["weights"][4] == pytest.approx(sum(rates), rel=1e-12)
