from paceline.race.results.ranking import ranked


def order(rates, *pairs):
    """Names in their order; `pairs` are those of whom the first beats the second."""
    return ranked(rates, rate=rates.__getitem__, beats=lambda one, other: (one, other) in pairs)


def test_the_fastest_comes_first():
    assert order({"a": 1.0, "b": 3.0, "c": 2.0}) == ["b", "c", "a"]


def test_whoever_is_beaten_comes_after_all_whom_nobody_beats():
    assert order({"a": 3.0, "b": 2.0, "c": 1.0}, ("b", "a")) == ["b", "c", "a"]


def test_where_all_are_beaten_the_fastest_comes_first():
    assert order({"a": 1.0, "b": 2.0, "c": 3.0}, ("a", "b"), ("b", "c"), ("c", "a")) == ["c", "b", "a"]


def test_nobody_has_an_order():
    assert order({}) == []
