import pytest

from paceline.errors import BadMember, PacelineError, Refused, UnknownName, WorkerFailed, WrongCommand, short
from paceline.menu.menu import convert
from paceline.race.contenders import parse_contender

LONG = "x" * 1_000_000
WORDS = "x y " * 250_000


@pytest.mark.parametrize("text", [LONG, WORDS])
def test_no_message_repeats_a_megabyte(text):
    for made in (
        WrongCommand(text, why=text, remedy=text),
        UnknownName("rule", text, ["grad"]),
        BadMember(text, why=text),
        Refused([text] * 200),
        PacelineError(text),
        WorkerFailed(text, why=text),
    ):
        assert len(str(made)) < 250_000
    for made in (UnknownName("rule", text, ["grad"]), BadMember(text)):
        assert len(str(made)) < 300


def test_input_is_repeated_in_eighty_characters():
    assert short("a" * 80) == "a" * 80
    assert len(short(LONG)) == 80
    assert short("begin" + LONG + "end").startswith("begin")
    assert short("begin" + LONG + "end").endswith("end")
    for ask in (lambda: parse_contender(LONG), lambda: convert(LONG, "int", "fusion", "mb")):
        with pytest.raises(WrongCommand) as caught:
            ask()
        assert len(str(caught.value)) < 250


def test_a_path_stays_whole():
    path = "/folder" * 30
    assert path in str(WrongCommand(f"{path} cannot be read", remedy=f"mkdir -p {path}"))


def test_many_problems_are_counted():
    assert Refused(map(str, range(150))).problems[-1] == "and 50 more problems"
    assert Refused(["a", "b"]).problems == ("a", "b")
