"""What rank 0 says over torch.distributed: those who hear listen ahead, and never for more than will be said."""

from types import SimpleNamespace

import pytest

from paceline.comm import groupboard
from paceline.comm.groupboard import GroupBoard


class Post:
    """A broadcast that is through when the test says so."""

    def __init__(self, number):
        self.number, self.value = number, None

    def arrive(self, value):
        self.number.fill_(value)
        self.value = value

    def is_completed(self):
        return self.value is not None

    def wait(self, limit):
        if self.value is None:
            raise RuntimeError("connection closed")


@pytest.fixture
def posts(monkeypatch):
    posts = []

    def broadcast(number, first, group, async_op):
        posts.append(Post(number))
        return posts[-1]

    monkeypatch.setattr(groupboard.dist, "broadcast", broadcast)
    return posts


def test_it_listens_for_a_few_at_once_and_for_no_more_than_are_coming(posts):
    board = GroupBoard(SimpleNamespace(deadline=1.0), None, 0)
    board.expect(GroupBoard.AHEAD + 2)
    assert len(posts) == GroupBoard.AHEAD
    for k in range(GroupBoard.AHEAD + 2):
        assert board.heard() is None
        posts[k].arrive(10 + k)
        assert board.heard() == 10 + k
    assert len(posts) == GroupBoard.AHEAD + 2, "nothing may be left that nobody answers"


def test_without_a_word_it_listens_for_one(posts):
    board = GroupBoard(SimpleNamespace(deadline=1.0), None, 0)
    assert board.heard() is None
    posts[0].arrive(3)
    assert board.hear() == 3
    assert len(posts) == 1
