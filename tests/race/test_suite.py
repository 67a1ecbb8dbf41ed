import pytest

from paceline.errors import Refused, WrongCommand
from paceline.race.plan import plan
from paceline.race.suite import read_suite, shipped

PUBLISHED = {"bluefog", "elasticdl", "tensorpack", "dlaas", "ddl_benchmarks"}
GOOD = """\
# a comment
contenders = ["allreduce"]
models = ["mlp"]
workers = [1, 2]

[run]
image_size = 32
steps = 5
"""
FIGURES = """\
[[published]]
text = "1.5"
workers = 2
[[published]]
"""


def suite_of(tmp_path, text):
    path = tmp_path / "suite.toml"
    path.write_text(text)
    return read_suite(str(path))


def test_there_is_a_suite_for_every_published_system():
    assert set(shipped()) == PUBLISHED


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_shipped_suite_can_run(name):
    planned = plan(read_suite(name))
    assert planned.suite.name == name
    assert planned.suite.rounds >= 5
    assert planned.cells


def test_a_suite_has_the_settings_of_its_file(tmp_path):
    suite = suite_of(tmp_path, GOOD)
    assert (suite.workers, suite.common) == ([1, 2], {"image_size": 32, "steps": 5})


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("models =", "modles =", "line 3: 'modles' is not known here. try: did you mean models?"),
        ("image_size = 32", "image_siz = 32", "line 7: 'image_siz' is not known here. try: did you mean image_size?"),
        ("steps = 5", 'steps = "many"', "line 8: steps = 'many': it takes a whole number. try: steps = 8"),
        ("[1, 2]", "[1, 0]", "line 4: workers = 0: it is above 0. try: workers = [1]"),
        ("[1, 2]", "[]", "line 4: workers = []: at least one is needed"),
        ("[1, 2]", "[1, 2", "is not TOML"),
        ("[1, 2]", "[" * 5000 + "]" * 5000, "is not TOML"),
        ("steps = 5", "steps = 5\nsteps = 6", "line 9"),
        ('"allreduce"', '"allreduse"', "line 2: strategy 'allreduse' does not exist. try: did you mean allreduce?"),
        ('"allreduce"', '\n"wfbp",\n"half: wfbp,precision=fp8",\n', "line 4: contender half: precision=fp8"),
        ('"allreduce"', '"wfbp", "rul=atc"', "line 2: flag of a contender 'rul' does not exist"),
        ('"mlp"', '"mlpp"', "line 3: model 'mlpp' does not exist"),
        ("steps = 5", 'source = "fkae"', "line 8: source 'fkae' does not exist. try: did you mean fake?"),
        ("steps = 5", 'compute = "reply(x)"', "line 8: compute 'reply' does not exist"),
        (
            "steps = 5",
            FIGURES + "text = '2'\nworker = 2",
            "line 13: 'worker' is not known here. try: did you mean workers? known: model",
        ),
        ("steps = 5", FIGURES + "text = '2'\nworkers = 0", "line 13: workers = 0: it is above 0. try: workers = 1"),
        ("steps = 5", FIGURES + "workers = 2", "line 11: text: it is missing"),
        ("[run]", "[[run]]", "line 6: run"),
    ],
)
def test_a_typo_names_the_line(tmp_path, right, wrong, complaint):
    with pytest.raises(WrongCommand) as found:
        suite_of(tmp_path, GOOD.replace(right, wrong))
    assert complaint in str(found.value)
    assert "suite.toml" in str(found.value)


def test_all_wrong_words_are_told_at_once(tmp_path):
    text = GOOD.replace("allreduce", "allreduse").replace("steps = 5", 'source = "fkae"')
    with pytest.raises(Refused) as refused:
        suite_of(tmp_path, text)
    assert [problem.partition(": ")[0][-6:] for problem in refused.value.problems] == ["line 8", "line 2"]


def test_an_unknown_suite_answers_with_the_list(tmp_path):
    with pytest.raises(WrongCommand, match="did you mean bluefog"):
        read_suite("bluefrog")
    with pytest.raises(WrongCommand, match="No such file"):
        read_suite(str(tmp_path / "none.toml"))


def test_a_published_figure_is_about_its_model_and_number_of_workers():
    planned = plan(read_suite("elasticdl"))
    shown = {
        str(heat): [figure.text for figure in planned.suite.published if figure.is_about(heat.model, heat.workers)]
        for heat in planned.heats
    }
    assert {heat: len(texts) for heat, texts in shown.items()} == {
        "mobilenet_v2(classes=10), 1 worker, batch 64": 0,
        "mobilenet_v2(classes=10), 2 workers, batch 64": 1,
        "resnet50(classes=10, bias=true), 1 worker, batch 64": 0,
        "resnet50(classes=10, bias=true), 2 workers, batch 64": 1,
    }
    told = [text for texts in shown.values() for text in texts]
    assert ["1.42" in told[0], "1.82" in told[1]] == [True, True]
