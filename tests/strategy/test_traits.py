"""Every trait has a default in its family's traits.py, so that nobody has to ask whether a member has it."""

import ast
from pathlib import Path

import pytest

import paceline
from paceline.run.compose.compose import MENUS
from paceline.strategy import topologies
from paceline.workload.computes import MENU as COMPUTES

ROOT = Path(paceline.__file__).parent
FAMILIES = {**MENUS, "topology": topologies.MENU}
FOREIGN = {"clone", "__name__"}  # attributes of values of torch and Python, which have no traits
WORDS = {word for menu in (*FAMILIES.values(), COMPUTES) for word in menu.names()}


def trees(*rooms):
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path, ast.parse(path.read_text())


def asked_for(call):
    """The literal attribute that a call of getattr or hasattr names."""
    if isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr") and len(call.args) > 1:
        return call.args[1].value if isinstance(call.args[1], ast.Constant) else None
    return None


def test_nobody_asks_whether_a_member_or_a_work_has_a_trait():
    rooms = ("strategy", "engine", "run", "train", "measure")
    calls = [(path, node) for path, tree in trees(*rooms) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [f"{path.relative_to(ROOT)}: {name}" for path, call in calls if (name := asked_for(call))]
    assert [line for line in found if line.rpartition(" ")[2] not in FOREIGN] == []


def test_nobody_branches_on_the_name_of_a_member():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in trees(".")
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Attribute)
        and node.left.attr == "name"
        and any(isinstance(part, ast.Constant) and part.value in WORDS for part in ast.walk(node))
        and "race/results" not in str(path)  # names of contenders, which users choose
    ]
    assert found == []


@pytest.mark.parametrize("axis", FAMILIES)
def test_every_member_inherits_the_traits_of_its_family(axis):
    menu = FAMILIES[axis]
    traits = {vars(__import__(f"{menu.package}.traits", fromlist=["x"]))[f"{axis.capitalize()}Traits"]}
    for word in menu.names():
        assert traits & set(menu.load(word).__mro__), word
