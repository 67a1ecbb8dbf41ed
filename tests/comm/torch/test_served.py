"""The owner's side of windows over torch.distributed: invalid headers end it, and mutexes are granted in order."""

from types import SimpleNamespace

import pytest
import torch

from paceline.comm.buffers import Turns
from paceline.comm.torch import served
from paceline.comm.torch.served import ADD, BYE, GET, PUT, WindowService
from paceline.errors import PeerLost, WrongCommand


def serve(monkeypatch, *headers, peer=1):
    """Serve these headers with one window, number 7, of 8 elements, which rank 1 may write; what was received."""
    received, waiting = [], list(headers)

    def recv(tensor, source, group, tag):
        assert tag == served.HEADER, "a payload was asked for"
        received.append(tensor.copy_(torch.tensor(waiting.pop(0))).tolist())

    monkeypatch.setattr(served.dist, "recv", recv)
    found = object.__new__(WindowService)
    found.comm, found.requests = SimpleNamespace(rank=0), None
    found.windows = {7: SimpleNamespace(numel=8, sources=(1,))}
    found._serve(peer)
    return received


@pytest.mark.parametrize(
    "header", [[PUT, 8, 8, 1], [PUT, 7, 1 << 40, 1], [ADD, 7, -1, 1], [GET, 7, 3, 1], [99, 7, 0, 1], [0, 0, 0, 0]]
)
def test_a_header_that_fits_no_window_is_refused_before_its_payload(monkeypatch, header):
    with pytest.raises(PeerLost, match="no window of rank 0"):
        serve(monkeypatch, header)


def test_only_sources_may_write(monkeypatch):
    with pytest.raises(PeerLost, match="may not write"):
        serve(monkeypatch, [PUT, 7, 8, 1], peer=2)


def test_a_goodbye_ends_the_service(monkeypatch):
    assert serve(monkeypatch, [BYE, 0, 0, 1]) == [[BYE, 0, 0, 1]]


def test_turns_are_taken_in_the_order_of_asking():
    turns, granted = Turns(), []
    for rank in (2, 0, 1):
        turns.ask(rank, lambda rank=rank: granted.append(rank))
    assert granted == [2]
    for rank in (2, 0, 1):
        turns.leave(rank)
    assert granted == [2, 0, 1]
    assert turns.holder == -1


def test_a_turn_can_be_given_back_by_its_holder_alone():
    turns = Turns()
    turns.ask(2, lambda: None)
    with pytest.raises(WrongCommand, match="rank 2 holds it"):
        turns.leave(1)
