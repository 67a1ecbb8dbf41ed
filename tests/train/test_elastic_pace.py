"""A new member of an elastic job whose donor dies while it enters."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from paceline.elastic.protocol import Group
from paceline.errors import PeerLost
from paceline.files.snapshot import Snapshot, fill, room_for
from paceline.train.elastic_pace import ElasticPace
from paceline.types import View

STEPS = 7  # that the donor has committed


class Left(Exception):
    """The member has reported what it holds."""


class Comm:
    """Rank 1 of two. Rank 0 sends its state, then dies: in the call with this number, counted from 1."""

    rank, size, segment, shares_results = 1, 2, 0, False

    def __init__(self, state, dies):
        header, tensors = Snapshot(state).outline()
        memory = torch.zeros(room_for(tensors), dtype=torch.uint8)
        fill(memory, tensors)
        sizes = torch.tensor([len(header), len(memory)])
        self._sent = [sizes, torch.frombuffer(bytearray(header), dtype=torch.uint8), memory]
        self._left = dies

    def _live(self):
        self._left -= 1
        if self._left < 1:
            raise PeerLost("rank 0 was lost", rank=0)

    def get_ready(self):
        self._live()

    def broadcast(self, tensor, root=0, key=""):
        self._live()
        tensor.copy_(self._sent.pop(0))
        return SimpleNamespace(wait=lambda: None)

    def allocate(self, numel, dtype, givers=None):
        return torch.zeros(numel, dtype=dtype)

    allocate_result = allocate

    def release(self, vector):
        """Rank 0 dies after the last call in which it takes part."""
        self._live()


class Presence:
    member, shares = "b", (range(4), range(4, 8))

    def __init__(self, comm):
        self.comm, self.group = comm, Group(2, ("a", "b"), STEPS, ("b",))
        self.committed, self.holds, self.taken = 0, False, 0

    def begin(self):
        return View(1, 2, (0, 0), 2, self.group.members)

    def suspect(self, problem):
        pass

    def leave(self):
        raise Left


def pace_of(presence, seed):
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return ElasticPace(model, optimizer, presence=presence, clock=lambda: 0.0)


@pytest.mark.parametrize("dies", [1, 2, 3, 4, 5])
def test_a_newcomer_that_has_loaded_the_state_says_of_how_many_steps_it_is(dies):
    """If it is the only one left, training goes on from its weights: samples of these steps must not be used again."""
    donor, fresh = (pace_of(Presence(None), seed) for seed in (1, 2))
    presence = Presence(Comm(donor._state(), dies))
    pace = pace_of(presence, 2)
    with pytest.raises(Left):
        pace.enter()
    loaded = torch.equal(pace.model.weight, donor.model.weight)
    assert loaded or torch.equal(pace.model.weight, fresh.model.weight)
    assert presence.committed == (STEPS if loaded else 0)
    assert not presence.holds
