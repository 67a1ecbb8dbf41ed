"""Every member of a menu has the type of its seam, as mypy sees it."""

import subprocess
import sys

import pytest

from paceline.run.compose.compose import MENUS
from paceline.strategy import topologies

SEAMS = {"exchange": "Costed"}  # an exchange of the menu also says what it costs
FAMILIES = {**MENUS, "topology": topologies.MENU}


def checks():
    """One function for each member, which mypy accepts if the member is what the seam wants."""
    yield "from paceline import protocols"
    for axis, menu in FAMILIES.items():
        for word in menu.names():
            member = menu.load(word)
            seam = SEAMS.get(axis, axis.capitalize())
            yield f"from {member.__module__} import {member.__name__}"
            yield f"def {axis}_{word}(member: {member.__name__}) -> protocols.{seam}: return member"


@pytest.mark.slow
def test_every_member_has_the_type_of_its_seam(tmp_path):
    file = tmp_path / "members.py"
    file.write_text("\n".join([*checks(), "def wrong(member: Bsp) -> protocols.Rule: return member", ""]))
    checked = subprocess.run([sys.executable, "-m", "mypy", str(file)], capture_output=True, text=True, check=False)
    errors = [line for line in checked.stdout.splitlines() if "error:" in line]
    assert len(errors) == 1, checked
    assert 'got "Bsp", expected "Rule"' in errors[0]
