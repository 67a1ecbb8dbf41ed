"""The board over torch.distributed: readers post receives in advance, but no more than were announced."""

import os
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from paceline.comm.thread import run_ranks
from paceline.comm.torch import groupboard
from paceline.comm.torch.gloo import GlooComm
from paceline.comm.torch.groupboard import GroupBoard


class Post:
    """A broadcast that the test completes."""

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


def test_a_board_goes_on_where_its_numbers_end():
    last = 2**31 - 1

    def work(comm):
        board = comm.board(4)
        board._count = last - 2
        comm.barrier()
        heard = []
        for value in range(4):
            if comm.rank == 0:
                board.say(value)
            else:
                heard.append(board.hear())
            comm.barrier()
        return heard

    assert run_ranks(2, work)[1] == [0, 1, 2, 3]


def test_boards_that_are_given_back_are_used_again(tmp_path, monkeypatch):
    """In a group of their own, which holds threads and connections."""

    def held():
        return [len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")]

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    comm = GlooComm(0, 1, dist.FileStore(str(tmp_path / "store"), 1))
    try:
        first, second = comm.board(4), comm.board(4)
        first.say(3)
        before = held()
        first.free()
        second.free()
        assert {comm.board(9), comm.board(2)} == {first, second}
        assert held() == before
        assert comm.board(2) not in (first, second)
    finally:
        comm.close()
