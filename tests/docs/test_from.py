"""Tables of docs/howto/from-*.md: every call of paceline in them exists and takes the arguments that it names."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import torch

import paceline
from paceline.api import join as joining
from paceline.comm.thread import run_ranks
from paceline.engine.device import CpuDevice
from paceline.run.run import CHOSEN

PAGES = sorted((Path(__file__).parents[2] / "docs/howto").glob("from-*.md"))
ROOTS = ("paceline", "worker", "pace", "win", "handle")
LEAST = {"from-bluefog": 35, "from-ddp": 20, "from-horovod": 25}


def snippets(page):
    """Return the pieces of code in the right column of the tables that use something of paceline."""
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ") and not line.startswith("|---")]
    codes = [code for row in rows for code in re.findall(r"`([^`]+)`", row.rsplit(" | ", 1)[1])]
    return [code for code in codes if re.match(rf"(\w+(, \w+)* = |with )?({'|'.join(ROOTS)})\.", code)]


def nodes(code):
    tree = ast.parse(f"{code} pass" if code.endswith(":") else code)
    return [node for node in ast.walk(tree) if isinstance(node, (ast.Call, ast.Attribute))]


def objects():
    """Return one real object of each kind, made in a job of one rank."""

    def body(comm):
        worker = joining.Worker(comm, CpuDevice())
        joining._current.set(worker)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pace = paceline.wrap(model, optimizer)
        x = torch.ones(1)
        return {
            "paceline": paceline,
            "worker": worker,
            "pace": pace,
            "win": paceline.window(x, topology="ring"),
            "handle": paceline.allreduce(x, wait=False),
        }

    return run_ranks(1, body)[0]


def value_of(node, roots):
    return roots[node.id] if isinstance(node, ast.Name) else getattr(value_of(node.value, roots), node.attr)


def rooted(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in ROOTS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_calls_of_the_tables_exist_with_their_arguments(page):
    roots, codes = objects(), snippets(page)
    assert len(codes) >= LEAST[page.stem], codes
    for code in codes:
        for node in nodes(code):
            if isinstance(node, ast.Attribute) and rooted(node):
                assert value_of(node, roots) is not None or node.attr == "device", code
            if isinstance(node, ast.Call) and rooted(node.func):
                words = {keyword.arg: keyword.value for keyword in node.keywords}
                inspect.signature(value_of(node.func, roots)).bind(*node.args, **words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_words_of_the_tables_compose(page):
    """A strategy or an axis that a table names can be chosen."""
    calls = [node for code in snippets(page) for node in nodes(code) if isinstance(node, ast.Call)]
    for call in calls:
        words = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg in CHOSEN}
        if call.func.attr == "wrap" and words:
            nodes_word = {"nodes": "2x2"} if "hierarchical" in str(words) else {}
            assert paceline.compose(paceline.Run(workers=4, **nodes_word, **words)).axes is not None, words


def test_a_call_that_does_not_exist_is_noticed():
    with pytest.raises(AttributeError):
        value_of(ast.parse("paceline.allsum").body[0].value, {"paceline": paceline})
