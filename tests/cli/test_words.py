"""The words of the published individual mode."""

from pathlib import Path

import pytest

from paceline.cli.options import run_from
from paceline.cli.words import COMPRESSORS, WORDS, settings_of
from paceline.errors import WrongCommand
from paceline.run.compose.compose import MENUS, compose


def asked(text, **flags):
    return run_from(flags, text.split(), chosen=list(flags))


def test_words_are_those_of_the_published_individual_mode():
    run = asked("dnn=bert_base bs=8 nworkers=4 senlen=64")
    assert (run.model, run.batch_size, run.workers, run.sequence_length) == ("bert_base", 8, 4, 64)


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        ("threshold=0", "wfbp"),
        ("threshold=1048576", "fusion(mb=4)"),  # elements of four bytes
        ("mgwfbp=1", "mgwfbp"),
        ("bytescheduler=1", "priority"),
        ("threshold=1000000", "fusion(mb=3.814697265625)"),
        ("bytescheduler=0", None),
        ("mgwfbp=0", "wfbp"),
        ("mgwfbp=0 bytescheduler=0", "wfbp"),
        ("mgwfbp=0 bytescheduler=1", "priority"),
        ("mgwfbp=0 threshold=1048576", "fusion(mb=4)"),
        ("threshold=1048576 mgwfbp=0", "fusion(mb=4)"),
    ],
)
def test_words_choose_the_schedule(words, schedule):
    assert asked(words).schedule == schedule


@pytest.mark.parametrize("elements", [1, 3, 1_000_000, 1_234_567, 8_388_608, 67_108_864, 123_456_789])
def test_a_threshold_is_exact(elements):
    schedule = MENUS["schedule"].make(asked(f"threshold={elements}").schedule)
    assert schedule.mb * (1 << 20) / 4 == elements
    assert MENUS["schedule"].make(str(schedule)) == schedule


@pytest.mark.parametrize("flags", [{"schedule": "fusion"}, {"strategy": "dear"}])
def test_no_merging_leaves_a_flag_alone(flags):
    assert asked("mgwfbp=0", **flags) == asked("", **flags)


def test_no_merging_beside_a_flag_that_merges_is_refused():
    with pytest.raises(WrongCommand, match="mgwfbp=0 beside --schedule mgwfbp: they say different things"):
        asked("mgwfbp=0", schedule="mgwfbp")


@pytest.mark.parametrize("word", ["mgwfbp=1", "bytescheduler=1"])
def test_a_schedule_by_name_wins_over_threshold_in_any_order(word, capsys):
    expected = asked(word).schedule
    for words in (f"{word} threshold=0", f"threshold=0 {word}"):
        assert asked(words).schedule == expected
        assert f"note: threshold=0 is not used: {word} decides" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        *("bytescheduler=1 mgwfbp=1", "mgwfbp=1 bytescheduler=1", "mgwfbp=0 mgwfbp=1", "mgwfbp=1 mgwfbp=0"),
        *("bs=8 bs=16", "threshold=0 threshold=4"),
    ],
)
def test_words_that_say_different_things_are_refused(words):
    first, second = words.split()
    with pytest.raises(WrongCommand, match=f"{second} beside {first}: they say different things"):
        asked(words)
    assert asked(f"{first} {first}") == asked(first)


def test_a_word_beside_a_flag_that_says_something_else_is_refused():
    with pytest.raises(WrongCommand, match="mgwfbp=1 beside --schedule wfbp: they say different things"):
        asked("mgwfbp=1", schedule="wfbp")
    with pytest.raises(WrongCommand, match="bs=64 beside --batch-size 32"):
        asked("bs=64", batch_size=32)
    assert asked("bs=64 mgwfbp=1", batch_size=64, schedule="mgwfbp") == asked("bs=64 mgwfbp=1")


def test_words_choose_servers_and_compressor():
    run = asked("nservers=2 compressor=gtopk")
    assert run.exchange == "ps(servers=2, colocated=false)"
    assert run.compressor == "feedback(gtopk(ratio=0.001))"
    assert asked("nservers=0").exchange is None


@pytest.mark.parametrize(
    ("word", "compress", "note"),
    [
        ("none", "none", ""),
        ("topk", "topk(ratio=0.001)", ""),  # there as here, without what was not sent
        ("eftopk", "feedback(topk(ratio=0.001))", ""),
        ("sign", "sign", ""),
        ("signum", "sign(momentum=0.9)", "without momentum: compressor=sign"),
        ("efsignum", "feedback(efsign)", "around the plain sign"),
    ],
)
def test_a_compressor_is_the_published_one_or_a_note_says_how_it_differs(word, compress, note, capsys):
    run = asked(f"compressor={word}")
    told = capsys.readouterr().out
    assert run.compressor == compress
    assert compose(run.model_copy(update={"workers": 2, "model": "mlp"})).axes
    assert f"note: compressor={word} is {compress} here: the published script" in told if note else not told
    assert note in told


@pytest.mark.parametrize("word", ["mgwfbp=1", "mgwfbp=0", "threshold=4"])
def test_what_is_fused_beside_a_compressor_is_noted_as_not_the_published_way(word, capsys):
    assert asked(f"{word} compressor=eftopk").schedule == asked(word).schedule
    told = f"note: {word} holds beside compressor=eftopk here: the published script fuses 67,108,864 elements"
    assert told in capsys.readouterr().out
    asked(f"{word} compressor=none")
    assert not capsys.readouterr().out


@pytest.mark.parametrize("word", ["rdma=1", "debug=0"])
def test_what_does_not_apply_is_noted(word, capsys):
    assert asked(word) == asked("")
    assert f"{word} is not applicable" in capsys.readouterr().out


def test_a_number_that_is_none_is_told():
    with pytest.raises(WrongCommand, match="threshold=many: many is not a whole number"):
        asked("threshold=many")


def test_no_merging_beside_a_strategy_that_merges_is_refused():
    with pytest.raises(WrongCommand, match=r"mgwfbp=0.*--strategy mg_wfbp"):
        settings_of(["mgwfbp=0"], lambda _: None, {"strategy": "mg_wfbp"})
    assert settings_of(["mgwfbp=0"], lambda _: None, {"strategy": "horovod"}) == {}


def test_the_page_about_words_has_all_of_them():
    page = (Path(__file__).parents[2] / "docs" / "howto" / "words.md").read_text()
    assert [word for word in WORDS if f"`{word}=" not in page] == []
    assert [word for word, text in COMPRESSORS.items() if f"| `{word}` | `{text}` |" not in page] == []


@pytest.mark.parametrize(("word", "remedy"), [("resnet50", "dnn=resnet50"), ("train.py", "-- python train.py")])
def test_a_word_without_a_key_gets_what_was_probably_meant(word, remedy):
    with pytest.raises(WrongCommand) as refused:
        asked(word)
    assert refused.value.remedy == remedy
