"""The counters of ranks have 32 bits, and a queue may live longer than that."""

from paceline.comm.queue import _past


def test_a_counter_that_has_wrapped_is_above_the_number_before():
    last = 2**32 - 1
    assert _past(last, last - 1)
    assert not _past(last, last)
    assert _past(0, last)


def test_numbers_go_on_where_counters_wrap():
    assert _past(5, 2**32 + 4)
    assert not _past(4, 2**32 + 4)
