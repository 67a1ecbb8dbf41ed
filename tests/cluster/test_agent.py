"""Lines that an agent reads."""

import pytest

from paceline.cluster.agent import _message


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"a":' * 100_000, b"", b"\xff", b"[]", b'{"a": 1}', b"1" * 10_000])
def test_a_line_that_is_no_message_ends_the_job(line):
    """An error here would end the thread that listens, and ranks would outlive their launcher."""
    assert _message(line) == {"kind": "end"}


def test_a_message_is_read():
    assert _message(b'{"kind": "beat"}') == {"kind": "beat"}
