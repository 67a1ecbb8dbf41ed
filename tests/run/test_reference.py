"""Traits of references: one for every class that trains with them, and no room branches on their names."""

import ast
from pathlib import Path

import paceline
from paceline.run.reference import COMPARED, REFERENCES, is_bound
from paceline.run.run import Run
from paceline.train.references import MENU, OWN_LOOP

ROOT = Path(paceline.__file__).parent


def comparisons(source):
    """Return the comparisons of a source with a literal name of a reference, or a container of them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            literals = {leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)}
            if literals & set(REFERENCES):
                yield ast.unparse(node)


def test_every_reference_has_traits_and_a_class_that_trains():
    assert set(REFERENCES) == set(MENU.names()) == set(OWN_LOOP.names())
    assert set(COMPARED) == set(REFERENCES.values())


def test_a_run_knows_the_traits_of_its_reference():
    assert Run(strategy="limit").reference is REFERENCES["limit"]
    assert Run(strategy="allreduce").reference is None
    assert is_bound("limit")
    assert not any(map(is_bound, ("ddp", "allreduce", None)))


def test_no_room_branches_on_the_name_of_a_reference():
    assert list(comparisons('run.reference == "ddp"'))  # the search finds what it looks for
    assert list(comparisons('p.strategy not in ("limit", "ddp")'))
    left = {path.name: branches for path in ROOT.rglob("*.py") if (branches := list(comparisons(path.read_text())))}
    assert not left
