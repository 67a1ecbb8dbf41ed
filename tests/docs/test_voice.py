"""Names and docstrings are plain English: CONTRIBUTING, style."""

import ast
import re
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_name_is_vague(path):
    vague = [f"line {line}: {name}" for line, name in names(ast.parse(path.read_text())) if name.strip("_") in VAGUE]
    assert vague == [], "name the thing: settings, records, interval, rival"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_sentence_of_a_docstring_is_a_riddle(path):
    riddles = [text for text in docstrings(ast.parse(path.read_text())) if RIDDLE.search(text)]
    assert riddles == [], "start with a verb or a full noun phrase"
