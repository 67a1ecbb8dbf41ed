"""Names are plain English: CONTRIBUTING, style."""

import ast
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
VAGUE = {"told", "said", "asked", "given", "found", "other"}


def names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.lineno, node.name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_name_is_vague(path):
    vague = [f"line {line}: {name}" for line, name in names(ast.parse(path.read_text())) if name.strip("_") in VAGUE]
    assert vague == [], "name the thing: settings, records, interval, rival"
