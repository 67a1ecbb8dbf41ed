import pytest

from paceline.errors import PacelineError
from paceline.race.contenders import contenders_of, parse_contender, same_result, split
from paceline.run.run import Run

BASE = Run(workers=4, model="mlp")


@pytest.mark.parametrize(
    ("text", "label", "choices"),
    [
        ("allreduce", "allreduce", {"strategy": "allreduce"}),
        ("allreduce, schedule=wfbp", "allreduce,schedule=wfbp", {"strategy": "allreduce", "schedule": "wfbp"}),
        (
            "rule=atc,exchange=neighbor(ring)",
            "rule=atc,exchange=neighbor(ring)",
            {"rule": "atc", "exchange": "neighbor(ring)"},
        ),
        ("half: allreduce,compress=cast(bf16)", "half", {"strategy": "allreduce", "compressor": "cast(bf16)"}),
        (
            '--rule atc --exchange "neighbor(ring)"',
            "rule=atc,exchange=neighbor(ring)",
            {"rule": "atc", "exchange": "neighbor(ring)"},
        ),
        ("--memory-format=channels_last", "memory_format=channels_last", {"memory_format": "channels_last"}),
        ("source=fake(cpu, samples=64)", "source=fake(cpu, samples=64)", {"source": "fake(cpu, samples=64)"}),
    ],
)
def test_a_contender_is_a_strategy_axes_or_both(text, label, choices):
    found = parse_contender(text)
    assert (found.label, dict(found.choices)) == (label, choices)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rul=atc", "did you mean rule?"),
        ("", "is empty"),
        ("allreduce,horovod", "strategy is given twice"),
        ("--rule atc extra", "'extra' belongs to no flag"),
        ("--rule 'atc", "No closing quotation"),
        ("steps=4", "belongs to the race as a whole"),
    ],
)
def test_what_cannot_be_read_says_why(text, complaint):
    with pytest.raises(PacelineError, match="(?s)" + complaint.replace("?", r"\?")):
        parse_contender(text)


def test_a_value_of_the_wrong_kind_names_the_contender():
    with pytest.raises(PacelineError, match="contender precision=fp8"):
        parse_contender("precision=fp8").run(BASE)


def test_a_contender_replaces_the_axes_of_the_base_and_keeps_the_rest():
    base = BASE.with_(strategy="horovod", source="fake(cpu)")
    run = parse_contender("schedule=wfbp").run(base)
    assert (run.strategy, run.schedule, run.source) == (None, "wfbp", "fake(cpu)")
    assert parse_contender("precision=bf16").run(base).strategy == "horovod"


def test_two_contenders_cannot_have_one_label():
    assert len(contenders_of(["ddp", "allreduce", "ddp"])) == 2
    with pytest.raises(PacelineError, match="the label x is taken"):
        contenders_of(["x: allreduce", "x: wfbp"])


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("allreduce", True),
        ("wfbp", True),
        ("ddp", True),
        ("source=fake(cpu)", True),
        ("compress=cast(bf16)", True),
        ("parameter_server", True),
        ("rule=server(staleness=2),exchange=ps", False),
        ("local_sgd", False),
        ("neighbor_allreduce", False),
        ("precision=bf16", False),
        ("batch_size=8", False),
    ],
)
def test_what_changes_convergence_is_known(text, same):
    assert same_result(parse_contender(text).run(BASE), BASE) is same


def test_commas_inside_parentheses_do_not_split():
    assert split("a(b, c), d,,e(f(g,h))") == ["a(b, c)", "d", "e(f(g,h))"]
