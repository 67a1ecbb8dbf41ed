"""DiLoCo in full: fragments, delay, mixing, compressed outer gradients and any outer optimizer.

The expected weights come from `by_hand`, which trains all ranks in one process with torch alone.
"""

import copy

import pytest
import torch
from torch import nn

from paceline.comm.thread import run_ranks
from paceline.errors import PacelineError
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy import rules
from paceline.strategy.rules.diloco import cut
from tests.laws.test_rules import pace_of
from tests.train.problems import flat, loss_of, mlp

RANKS, STEPS = 2, 13


def batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 8, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def nesterov(anchors):
    return torch.optim.SGD(anchors, lr=0.7, momentum=0.9, nesterov=True)


def by_hand(*, every, turns, parts, delay=0, mixing=1.0, outer=nesterov, steps=STEPS):
    """The weights of every rank after each step. Part k leaves at steps with step % every == turns[k], from step 1."""
    models = [mlp() for _ in range(RANKS)]
    inner = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    of = [list(model.parameters())[::-1] for model in models]
    anchors = [nn.Parameter(p.detach().clone()) for p in of[0]]
    optimizer, under_way, seen = outer(anchors), {}, []
    for step in range(1, steps + 1):
        for rank in range(RANKS):
            loss_of(models[rank], *batch(rank, step)).backward()
            inner[rank].step()
            inner[rank].zero_grad()
        with torch.no_grad():
            for part, turn in zip(parts, turns, strict=True):
                if step % every == turn:
                    means = [sum((anchors[k] - own[k]) * (1 / RANKS) for own in of) for k in part]
                    under_way[step + delay] = (part, means)
        if step in under_way:
            part, means = under_way.pop(step)
            for k, mean in zip(part, means, strict=True):
                anchors[k].grad = mean
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for own in of:
                    for k in part:
                        own[k].copy_(anchors[k] if mixing == 1 else own[k].lerp(anchors[k], mixing))
        seen.append([flat(model).clone() for model in models])
    return seen


def trained(rule, steps=STEPS, saved_at=0, **axes):
    """The weights of every rank after each step, as `by_hand` returns them."""

    def begin(comm):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, pace_of(comm, model, optimizer, rule=rule, **axes)

    def work(comm):
        model, optimizer, pace = begin(comm)
        seen = []
        for step in range(1, steps + 1):
            loss_of(model, *batch(comm.rank, step)).backward()
            assert pace.step()
            seen.append(flat(model).clone())
            if step == saved_at:
                saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), pace.state_dict()))
                pace.close()
                model, optimizer, pace = begin(comm)
                for part, state in zip((model, optimizer, pace), saved, strict=True):
                    part.load_state_dict(state)
        return seen

    return [list(step) for step in zip(*run_ranks(RANKS, work), strict=True)]


def same(one, two):
    return all(torch.equal(a, b) for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True))


ALL = [0, 1, 2, 3]


def test_streaming_with_one_fragment_no_delay_and_mixing_1_is_diloco_to_the_bit():
    plain = by_hand(every=4, turns=[0], parts=[ALL])
    assert same(trained("diloco(every=4)"), plain)
    assert same(trained("diloco(every=4, fragments=1, delay=0, mixing=1)"), plain)
    assert not same(trained("diloco(every=4, mixing=0.5)"), plain)


def test_every_fragment_is_exchanged_at_its_own_steps_and_no_other():
    seen = trained("diloco(every=6, fragments=3)")
    model = mlp()
    sizes = [p.numel() for p in list(model.parameters())[::-1]]
    parts = cut(sizes, 3)
    assert same(seen, by_hand(every=6, turns=[2, 4, 0], parts=parts))
    bounds = torch.tensor([0, *sizes]).cumsum(0).tolist()
    for step, (one, two) in enumerate(seen, start=1):
        agreed = [k for k, part in enumerate(parts) if all(_equal(one, two, bounds, sizes, p) for p in part)]
        assert agreed == {2: [0], 4: [1], 0: [2]}.get(step % 6, [])


def _equal(one, two, bounds, sizes, position):
    """`flat` has the parameters in the model's order, fragments from the last to the first."""
    stop = bounds[-1] - bounds[position]
    part = slice(stop - sizes[position], stop)
    return torch.equal(one[part], two[part])


@pytest.mark.parametrize(("delay", "mixing"), [(1, 1.0), (3, 0.5), (5, 0.25)])
def test_a_fragment_is_mixed_in_after_its_delay(delay, mixing):
    parts = cut([p.numel() for p in list(mlp().parameters())[::-1]], 2)
    expected = by_hand(every=6, turns=[3, 0], parts=parts, delay=delay, mixing=mixing)
    assert same(trained(f"diloco(every=6, fragments=2, delay={delay}, mixing={mixing})"), expected)


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("adamw(lr=0.01)", lambda anchors: torch.optim.AdamW(anchors, lr=0.01)),
        ("sgd(lr=0.5)", lambda anchors: torch.optim.SGD(anchors, lr=0.5)),
        ("nadam(lr=0.02)", lambda anchors: torch.optim.NAdam(anchors, lr=0.02)),
    ],
)
def test_any_optimizer_of_torch_makes_the_outer_step(text, make):
    parts = cut([p.numel() for p in list(mlp().parameters())[::-1]], 2)
    seen = trained(f"diloco(every=4, fragments=2, outer={text})")
    assert same(seen, by_hand(every=4, turns=[2, 0], parts=parts, outer=make))


@pytest.mark.parametrize("saved_at", [5, 6, 8])
def test_a_checkpoint_keeps_what_is_under_way(saved_at):
    rule = "diloco(every=6, fragments=2, delay=4, mixing=0.5)"
    assert same(trained(rule, saved_at=saved_at), trained(rule))


@pytest.mark.parametrize(
    "compressor", ["cast(bf16)", "qsgd", "feedback(topk(ratio=0.1))", "feedback(powersgd(rank=1))"]
)
def test_outer_gradients_travel_compressed_and_ranks_agree(compressor):
    seen = trained("diloco(every=3, fragments=3, delay=1)", compressor=compressor)
    plain = trained("diloco(every=3, fragments=3, delay=1)")
    assert not same(seen, plain)
    whole = trained("diloco(every=3)", compressor=compressor)
    assert [torch.equal(one, two) for one, two in whole] == [step % 3 == 0 for step in range(1, STEPS + 1)]


def test_a_checkpoint_keeps_the_residual_of_compressed_outer_gradients():
    axes = {"rule": "diloco(every=4, fragments=2, delay=3)", "compressor": "feedback(topk(ratio=0.1))"}
    assert same(trained(**axes, saved_at=6), trained(**axes))


def test_fragments_are_runs_of_whole_tensors_of_nearly_equal_size():
    assert cut([5, 5, 5, 5], 2) == [[0, 1], [2, 3]]
    assert cut([100, 1, 1, 1], 3) == [[0], [1], [2, 3]]
    for sizes in ([1], [3, 1, 4, 1, 5, 9, 2, 6], [0, 0, 7]):
        for count in range(1, len(sizes) + 1):
            parts = cut(sizes, count)
            assert len(parts) == count
            assert all(parts)
            assert [position for part in parts for position in part] == list(range(len(sizes)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("diloco(fragments=0)", "1 to every=50"),
        ("diloco(every=4, fragments=5)", "1 to every=4"),
        ("diloco(every=4, delay=4)", "delay lies in 0 to 3"),
        ("diloco(delay=-1)", "delay lies in 0 to 49"),
        ("diloco(mixing=0)", "above 0 and at most 1"),
        ("diloco(mixing=1.5)", "above 0 and at most 1"),
        ("diloco(lr=0.1, outer=adam(lr=0.01))", "lr and momentum belong to adam: write them inside"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text, why):
    with pytest.raises(PacelineError) as refusal:
        rules.MENU.make(text)
    assert why in str(refusal.value)


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"rule": "diloco(outer=lbfgs)"}, ["no gradient of a loss", "outer=adamw(lr=0.01)"]),
        ({"rule": "diloco(outer=adamm(lr=0.1))"}, ["adamm", "adamw"]),
        ({"rule": "diloco(outer=adam(rate=0.1))"}, ["outer=adam(rate=0.1) of rule diloco", "got rate"]),
        ({"rule": "diloco", "compressor": "dgc"}, ["takes over the momentum", "feedback(topk(ratio=0.01))"]),
        ({"rule": "diloco", "compressor": "topk", "exchange": "hierarchical(1x2)"}, ["this exchange only sums"]),
        ({"rule": "diloco(fragments=2)", "schedule": "dear"}, ["it has no mean gradient to wait for"]),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(axes, words):
    with pytest.raises(PacelineError) as refusal:
        compose(Run(workers=2, **axes))
    for word in words:
        assert word in str(refusal.value)


def test_a_note_says_what_explain_and_forecast_do_not_count():
    notes = compose(Run(workers=2, rule="diloco(every=8, delay=2)")).notes
    assert any("count one exchange of all every 8 steps, without delay" in note for note in notes)
    assert not any("count one exchange" in note for note in compose(Run(workers=2, rule="diloco")).notes)


def test_more_fragments_than_tensors_and_a_state_of_other_fragments_are_refused():
    def work(comm):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(PacelineError, match="fragments=2, or fewer"):
            pace_of(comm, model, optimizer, rule="diloco(fragments=3)")
        pace = pace_of(comm, model, optimizer, rule="diloco(fragments=2)")
        state = pace.state_dict()
        pace.close()
        with pytest.raises(PacelineError, match="of 2 exchanged vectors, loaded where there are 1"):
            pace_of(comm, model, optimizer, rule="diloco").load_state_dict(state)

    run_ranks(1, work)


def test_models_in_half_precision_are_mixed_in_float32():
    def work(comm):
        model = nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
        nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        pace = pace_of(comm, model, optimizer, rule="diloco(every=1, lr=1, momentum=0, mixing=0.5)")
        (model.weight * (comm.rank + 1)).sum().backward()
        pace.step()
        return model.weight.detach().float()[0, 0].item()

    # local steps reach 0.75 and 0.5; the anchor moves to 0.625, and each rank goes half the way
    assert run_ranks(2, work) == [0.6875, 0.5625]
