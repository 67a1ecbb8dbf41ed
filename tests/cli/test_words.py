"""The words of the published individual mode."""

import pytest

from paceline.cli.options import run_from
from paceline.errors import WrongCommand


def asked(text):
    return run_from({}, text.split())


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
