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
# Attributes of values that are not ours, and so have no traits: of torch and its users, of Python, of the parser.
FOREIGN = {"clone", "to", "logits", "sampler", "batch_sampler", "__getitem__", "__len__"}
FOREIGN |= {"__name__", "__args__", "sched_getaffinity", "last_value", "strerror", "MAP_POPULATE", "model_fields"}
FOREIGN |= {"optimizer", "_orig_mod", "_compiled_call_impl", "found_inf", "__func__", "getloadavg", "TCP_USER_TIMEOUT"}
FOREIGN |= {
    "_schedulers",
    "ctx",
    "option_name",
    "param",
    "rich_help_panel",
    "item",
    "ndim",
    "nbytes",
    "safe_path",
    "mallopt",
}
WORDS = {word for menu in (*FAMILIES.values(), COMPUTES) for word in menu.names()}


def trees(*rooms, containing=""):
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            if containing in (text := path.read_text()):
                yield path, ast.parse(text)


def literal_attribute(call):
    """The literal attribute that a call of getattr or hasattr names."""
    if isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr") and len(call.args) > 1:
        return call.args[1].value if isinstance(call.args[1], ast.Constant) else None
    return None


def test_nobody_asks_whether_a_member_or_a_work_has_a_trait():
    calls = [
        (path, node)
        for path, tree in trees(".", containing="attr(")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]
    uses = [f"{path.relative_to(ROOT)}: {name}" for path, call in calls if (name := literal_attribute(call))]
    assert [line for line in uses if line.rpartition(" ")[2] not in FOREIGN] == []


def test_nobody_branches_on_the_name_of_a_member():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in trees(".", containing=".name")
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
