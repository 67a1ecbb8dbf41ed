import time

import pytest

from paceline.errors import BadMember
from paceline.menu.grammar import parse, quoted


@pytest.mark.parametrize(
    "text",
    ["bsp", "fusion(4)", "fusion(mb=4)", "feedback(topk(ratio=0.01))", "hierarchical(4x8)", "fake(cpu, samples=10)"],
)
def test_what_prints_can_be_read_back(text):
    assert str(parse(text)) == text
    assert parse(str(parse(text))) == parse(text)


def test_spaces_do_not_matter():
    assert parse(" fake( cpu ,samples = 10 ) ") == parse("fake(cpu, samples=10)")


def test_paths_and_addresses_are_words():
    spec = parse("tfrecord(s3://bucket/a-b_c/train)")
    assert spec.args[0].word == "s3://bucket/a-b_c/train"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected a word, found the end"),
        ("fusion(", "not closed"),
        ("fusion(mb=)", "expected a word, found ')'"),
        ("fusion)", "unexpected ')'"),
        ("fake(samples=1, cpu)", "stands after a named setting"),
        ("(4)", "expected a word"),
    ],
)
def test_a_broken_text_says_where_it_stops(text, complaint):
    with pytest.raises(BadMember, match="cannot be read") as caught:
        parse(text)
    assert complaint in str(caught.value)


def test_a_text_of_any_depth_is_read_or_refused():
    assert str(parse("a(" * 50 + "b" + ")" * 50)).count("a") == 50
    for text in ("a(" * 51 + "b" + ")" * 51, "a(" * 4_000):
        with pytest.raises(BadMember, match="nested deeper than 50"):
            parse(text)


def test_a_long_text_is_read_in_a_moment_and_a_longer_one_is_refused():
    text = "a(" + ",".join("b=c" for _ in range(2_400)) + ")"
    began = time.perf_counter()
    assert len(parse(text).kwargs) == 2_400
    assert time.perf_counter() - began < 0.5  # 14 s for 40 kB where tokens were copied at each word
    with pytest.raises(BadMember, match="at most 10,000 are read") as caught:
        parse("a" * 1_000_000)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["a(,=3)", "a((=3)", "a(==3)"])
def test_only_a_word_names_a_setting(text):
    with pytest.raises(BadMember, match="expected a word"):
        parse(text)


@pytest.mark.parametrize(
    "word",
    [
        "s3://b/date=2024/x y",
        "a,b",
        "f(x)",
        "it's",
        '"',
        "'",
        "",
        " ",
        "back\\slash (x)",
        "\\'\" ",
        "(",
        "=",
        "a\nb",
        "é ü",
    ],
)
def test_any_text_can_be_written_in_quotes(word):
    spec = parse(f"source({quoted(word)}, key={quoted(word)})")
    assert spec.args[0].text == word
    assert dict(spec.kwargs)["key"].text == word
    assert parse(str(spec)) == spec


def test_quotes_need_not_be_written_and_stay_part_of_a_word():
    assert str(parse("idx('/data')")) == "idx(/data)"
    assert parse("it's").word == "it's"
    assert parse("""x("a 'b' c")""").args[0].text == "a 'b' c"


@pytest.mark.parametrize("text", ["x('a b)", "x('a'b)", '"', "x(a, 'b)"])
def test_a_quote_that_is_not_closed_is_refused(text):
    with pytest.raises(BadMember, match="is not closed, or something follows it"):
        parse(text)


def test_a_quoted_sign_is_a_word():
    assert parse("x('(')").args[0].word == "("
    assert parse("x('a=1')").args[0].word == "a=1"


def test_a_member_with_such_a_setting_prints_as_it_is_written():
    from paceline.workload.sources import MENU

    source = MENU.make("idx('/data/date=2024/x y', channels=3)")
    assert source.folder == "/data/date=2024/x y"
    assert str(source) == "idx(folder='/data/date=2024/x y', channels=3)"
    assert MENU.make(str(source)) == source
