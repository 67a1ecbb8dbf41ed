"""Options of members that change what they compute: terngrad's clip, feedback's beta and gamma, rule push_diging."""

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.errors import PacelineError
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy import compressors
from tests.laws.test_compressors import bound, layout_of, noise, step, through
from tests.laws.test_rules import OPTIMUM, pace_of, quadratic


def test_terngrad_clips_outliers_to_a_multiple_of_the_root_mean_square():
    vector = torch.ones(64)
    vector[5] = -1000.0  # the root mean square is 125.004
    sizes = {text: through(text, vector)[0][0].abs().max().item() for text in ("terngrad", "terngrad(clip=2.5)")}
    assert sizes["terngrad"] == 1000.0
    assert sizes["terngrad(clip=2.5)"] == pytest.approx(2.5 * (1000063 / 64) ** 0.5, rel=1e-5)


def test_terngrad_without_outliers_is_not_changed_by_clipping():
    vector = torch.tensor([0.5, -0.5] * 300)  # a bucket that is not full: zeros behind it must not count
    plain, clipped = (through(text, vector)[0][0] for text in ("terngrad", "terngrad(clip=2.5)"))
    assert torch.equal(plain, clipped)
    assert torch.equal(clipped, vector)


def test_clipping_makes_terngrad_biased_and_says_so():
    make = compressors.MENU.make
    assert (make("terngrad").biased, make("terngrad(clip=2.5)").biased) == (False, True)
    assert any("biased" in note for note in compose(Run(workers=2, compressor="terngrad(clip=2.5)")).notes)
    with pytest.raises(PacelineError, match="clip is at least 0"):
        make("terngrad(clip=-1)")


@pytest.mark.parametrize(("beta", "gamma"), [(1.0, 1.0), (0.5, 1.0), (0.9, 0.25), (0.0, 2.0)])
def test_feedback_weighs_residual_and_gradient(beta, gamma):
    layout = layout_of((8,))
    text = f"feedback(topk(ratio=0.25), beta={beta}, gamma={gamma})"
    vectors = [noise(8, seed) for seed in range(5)]

    def work(comm):
        codec = bound(text, layout, comm)
        return [step(comm, layout, codec, vector.clone(), k)[0] for k, vector in enumerate(vectors)]

    residual = torch.zeros(8)
    for vector, sent in zip(vectors, run_ranks(1, work)[0], strict=True):
        due = beta * residual + gamma * vector
        kept = due.abs().argsort(stable=True)[-2:]
        assert torch.allclose(sent[kept], due[kept])
        residual = due - sent


def test_feedback_writes_its_settings_and_refuses_wrong_ones():
    make = compressors.MENU.make
    assert f"{make('feedback(topk)')}" == "feedback(topk)"
    text = f"{make('feedback(topk, beta=0.9, gamma=0.5)')}"
    assert text == "feedback(topk, beta=0.9, gamma=0.5)"
    assert make(text) == make("feedback(topk, beta=0.9, gamma=0.5)")
    with pytest.raises(PacelineError, match="beta is from 0 to 1"):
        make("feedback(topk, beta=2)")
    with pytest.raises(PacelineError, match="gamma is above 0"):
        make("feedback(topk, gamma=0)")


@pytest.fixture
def directed(tmp_path):
    """Return a directed irregular graph of five ranks: 0 sends to four, the others to one or two."""
    path = tmp_path / "directed.txt"
    path.write_text("0 1\n1 2\n2 3\n3 4\n4 0\n0 2\n0 3\n0 4\n1 3\n")
    return f"neighbor(graph({path}, directed=true))"


def test_push_diging_reaches_the_optimum_where_push_sum_keeps_a_bias(directed):
    exact = run_ranks(5, lambda comm: quadratic(comm, "push_diging", directed, lr=0.03, steps=900))
    assert exact == pytest.approx([OPTIMUM] * 5, abs=1e-8)
    biased = run_ranks(5, lambda comm: quadratic(comm, "push_sum", directed, lr=0.03, steps=900))
    assert max(abs(value - OPTIMUM) for value in biased) > 0.01


def test_push_diging_keeps_the_sum_of_gradients_and_the_mass(directed):
    def work(comm):
        model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
        torch.nn.init.constant_(model.weight, 2.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        pace = pace_of(comm, model, optimizer, rule="push_diging", exchange=directed)
        rows = []
        for _ in range(6):
            ((comm.rank + 1) * (model.weight - comm.rank) ** 2).sum().backward()
            gradient = float(model.weight.grad)
            assert pace.step()
            rows.append((float(pace.duty.y[0]), gradient, pace.duty.p))
        return rows

    for rows in zip(*run_ranks(5, work), strict=True):
        trackers, gradients, masses = (sum(column) for column in zip(*rows, strict=True))
        assert trackers == pytest.approx(gradients, abs=1e-12)
        assert masses == pytest.approx(5.0, abs=1e-12)
