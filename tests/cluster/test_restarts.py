import pytest

from paceline.cluster.restarts import Restarts
from paceline.errors import WrongCommand


@pytest.mark.parametrize(("policy", "allowed"), [("always", 9), ("never", 0), ("3", 3)])
def test_a_policy_allows_so_many_restarts(policy, allowed):
    restarts = Restarts(policy)
    assert sum(restarts.allows(0) for _ in range(9)) == allowed


def test_the_coordinator_is_always_started_again():
    restarts = Restarts("never", always=frozenset({4}))
    assert restarts.allows(4)
    assert not restarts.allows(0)


@pytest.mark.parametrize("policy", ["", "-1", "often", "1.5"])
def test_a_wrong_policy_is_refused(policy):
    with pytest.raises(WrongCommand, match="--restart"):
        Restarts(policy)
