"""The words of the published individual mode."""

import pytest

from paceline.cli.options import run_from
from paceline.errors import WrongCommand


def asked(text, **flags):
    return run_from(flags, text.split(), given=list(flags))


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
        ("mgwfbp=0 bytescheduler=0", None),
    ],
)
def test_words_choose_the_schedule(words, schedule):
    assert asked(words).schedule == schedule


@pytest.mark.parametrize("word", ["mgwfbp=1", "bytescheduler=1"])
def test_a_schedule_by_name_wins_over_threshold_in_any_order(word, capsys):
    expected = asked(word).schedule
    for words in (f"{word} threshold=0", f"threshold=0 {word}"):
        assert asked(words).schedule == expected
        assert f"note: threshold=0 is not used: {word} decides" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", ["bytescheduler=1 mgwfbp=1", "mgwfbp=1 bytescheduler=1", "bs=8 bs=16", "threshold=0 threshold=4"]
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
    assert run.compress == "feedback(gtopk(ratio=0.01))"
    assert asked("nservers=0").exchange is None


def test_rdma_is_noted_as_not_applicable(capsys):
    assert asked("rdma=1") == asked("")
    assert "rdma=1 is not applicable" in capsys.readouterr().out


def test_a_number_that_is_none_is_told():
    with pytest.raises(WrongCommand, match="threshold=many: many is not a whole number"):
        asked("threshold=many")
