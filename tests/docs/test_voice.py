"""Names and docstrings are plain English: CONTRIBUTING, style."""

import ast
import re
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parent
ROOMS = sorted(path for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())
VAGUE = {"told", "said", "asked", "given", "found", "other"}
RIDDLE = re.compile(r"(?:^|(?<=[.!?] )|(?<=[.!?]\n))(?:Of|What is|What was|Who|Whoever|Whose) ")


def names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.lineno, node.name


def docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
            yield text


def vague(tree):
    return [f"line {line}: {name}" for line, name in names(tree) if name.strip("_") in VAGUE]


def riddles(tree):
    return [text for text in docstrings(tree) if RIDDLE.search(text)]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_names_are_not_vague_and_no_sentence_of_a_docstring_is_a_riddle(room):
    for path in sorted(room.rglob("*.py")) if room.is_dir() else [room]:
        tree = ast.parse(path.read_text())
        assert vague(tree) == [], f"{path}: name the thing: settings, records, interval, rival"
        assert riddles(tree) == [], f"{path}: start with a verb or a full noun phrase"


def test_the_rooms_hold_every_file():
    seen = {path for room in ROOMS for path in (room.rglob("*.py") if room.is_dir() else [room])}
    assert seen == set(ROOT.rglob("*.py"))


def test_a_vague_name_and_a_riddle_would_be_seen():
    tree = ast.parse('def told():\n    """Of every link, each way."""')
    assert vague(tree) == ["line 1: told"]
    assert riddles(tree) == ["Of every link, each way."]
