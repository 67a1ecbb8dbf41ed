"""The table of comms says the same as the comms themselves."""

import pytest

from paceline.comm import MENU
from paceline.comm.kinds import KINDS, kind_of


def test_every_comm_of_the_menu_has_a_kind():
    assert set(KINDS) == {"auto", *MENU.names()}


@pytest.mark.parametrize("name", MENU.names())
def test_a_kind_is_known_with_and_without_settings(name):
    assert kind_of(name) is KINDS[name]
    assert kind_of(f"{name}(streams=2)") is KINDS[name]
