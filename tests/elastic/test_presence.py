"""When a member counts others as silent."""

from types import SimpleNamespace

import pytest

from paceline.elastic import presence as presences
from paceline.elastic.contact import Contact
from paceline.elastic.presence import LEAST_SILENCE, ElasticPresence
from paceline.elastic.protocol import Group
from paceline.errors import PeerLost


class Signs:
    """Signs of a peer that makes no progress."""

    def beat(self):
        pass

    def beats(self, rank):
        return 5

    def phase(self, rank):
        return 0

    def fenced(self):
        return False

    def name(self, rank):
        return f"rank {rank}"


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(presences, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


@pytest.fixture
def member(monkeypatch):
    transport = SimpleNamespace(about=dict)
    made = ElasticPresence(Contact("token", fixed="127.0.0.1:1"), "a", transport=transport)
    monkeypatch.setattr(made.client, "poll", lambda *_: None)
    made.group, made._signs, made._inside = Group(1, ("a", "b"), 0), Signs(), True
    made._commits, made._durations = 10, [0.1] * 10
    assert made.silence == LEAST_SILENCE
    return made


def test_a_member_is_silent_only_while_it_is_waited_for(member, clock):
    """Both evaluated for some seconds since the last wait; the one that was done first evicted the other at once."""
    member._watch(member._signs, [1])
    clock.seconds += 10 * LEAST_SILENCE
    member.beat()  # this member computes its own gradients
    member._watch(member._signs, [1])
    clock.seconds += 0.9 * LEAST_SILENCE
    member._watch(member._signs, [1])
    clock.seconds += 0.2 * LEAST_SILENCE
    with pytest.raises(PeerLost, match="rank 1 makes no progress"):
        member._watch(member._signs, [1])
    assert member._suspects == {"b"}
