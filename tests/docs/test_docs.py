"""What the docs say can be followed: links lead somewhere, commands exist, code compiles and concept snippets run."""

import ast
import contextlib
import importlib
import io
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import typer

import paceline
from paceline.cli import app, main
from paceline.comm.thread import run_ranks
from paceline.measure.record.record import Record
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy import compressors
from paceline.train.pace import Pace
from paceline.types import Chunk, Layout, Slot
from tests import forked

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CONCEPTS = sorted((ROOT / "docs" / "concepts").glob("[!R]*.md"))
CLASSES = ROOT / "docs" / "concepts" / "README.md"
WITH_PROCESSES = ("record.md", "window.md")  # their snippets need a run, or several processes
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
USAGE_ERROR = typer.BadParameter.__mro__[1]  # of the click that this typer is built on
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(text: str, kind: str) -> list[str]:
    return [body for word, body in FENCE.findall(text) if word == kind]


def links(text: str) -> list[str]:
    """Relative links, without what looks like one in code."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    return [target for target in LINK.findall(prose) if "://" not in target and not target.startswith("mailto:")]


def broken(text: str, folder: Path) -> list[str]:
    return [target for target in links(text) if not _leads_somewhere(folder, *target.partition("#")[::2])]


def _leads_somewhere(folder: Path, target: str, anchor: str) -> bool:
    place = folder / target
    if not place.exists():
        return False
    return not anchor or f"# {anchor.replace('-', ' ')}" in place.read_text().lower()


def commands(text: str) -> list[list[str]]:
    """The words of every `$ paceline ...` line."""
    lines = [line for block in blocks(text, "console") for line in block.splitlines()]
    return [shlex.split(line[2:], comments=True)[1:] for line in lines if line.startswith("$ paceline")]


def parse(words: list[str]) -> None:
    """Raise what a wrong command raises, without carrying it out."""
    words = words[: words.index("--")] if "--" in words else words
    group = typer.main.get_command(app)
    with group.make_context("paceline", list(words)) as context:
        _, verb, rest = group.resolve_command(context, list(words))
        assert verb is not None
        verb.make_context(verb.name, rest, parent=context).close()


def run(code: str, page: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, page, "exec"), {"__name__": "__main__"})
    return shown.getvalue()


def explained(text: str) -> list[tuple[list[str], str]]:
    """Every `$ paceline explain ...` that has its output below it."""
    found = []
    for block in blocks(text, "console"):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            line, _, output = part.partition("\n")
            if line.startswith("paceline explain") and output:
                found.append((shlex.split(line, comments=True)[1:], output))
    return found


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_relative_links_lead_somewhere(path):
    assert broken(path.read_text(), path.parent) == []


def test_a_broken_link_would_be_found():
    text = "[a](nowhere.md) [b](README.md#no-such-part) `[c](in_code.md)` [d](README.md#install)"
    assert broken(text, ROOT) == ["nowhere.md", "README.md#no-such-part"]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=f"{name(path)}: {shlex.join(words)}")
        for path in PAGES
        for words in commands(path.read_text())
    ],
)
def test_commands_use_verbs_and_flags_that_exist(words):
    parse(words)


@pytest.mark.parametrize("line", ["rum -np 2", "run --no-such-flag", "run -np two", "explain --classes 3 --nope"])
def test_a_wrong_command_would_be_found(line):
    with pytest.raises(USAGE_ERROR):
        parse(line.split())


@pytest.mark.parametrize(
    ("words", "output"),
    [
        pytest.param(words, output, id=f"{name(path)}: {shlex.join(words)}")
        for path in PAGES
        for words, output in explained(path.read_text())
    ],
)
def test_explain_says_what_the_docs_show(words, output, capsys):
    with pytest.raises(SystemExit):
        main(words)
    shown = capsys.readouterr()
    assert shown.out + shown.err == output


@pytest.mark.parametrize("strategy", ["allreduce", "topk_sgd"])
def test_the_first_screen_has_the_bytes_that_explain_computes(strategy, capsys):
    with pytest.raises(SystemExit):
        main(["explain", "-np", "4", "--strategy", strategy])
    [received] = re.findall(r"^received +([\d,]+) bytes", capsys.readouterr().out, re.M)
    assert f"{received} " in "".join((ROOT / "README.md").read_text().splitlines(keepends=True)[:30])


def test_the_readme_has_at_most_120_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.fixture
def int8(monkeypatch):
    """The compressor of CONTRIBUTING.md as a member of the menu."""
    block = next(block for block in blocks((ROOT / "CONTRIBUTING.md").read_text(), "python") if "int8" in block)
    module = ModuleType("paceline.strategy.compressors.int8")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block, "CONTRIBUTING.md", "exec"), vars(module))
    monkeypatch.setitem(compressors.MENU.members, "int8", "paceline.strategy.compressors.int8:Int8")


@pytest.mark.usefixtures("int8")
def test_the_member_that_newcomers_are_shown_trains():
    def train(comm, compressor):
        model = torch.nn.Linear(4, 1)
        torch.nn.init.ones_(model.weight)
        torch.nn.init.zeros_(model.bias)
        axes = compose(Run(workers=2, compress=compressor)).axes
        pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, axes=axes)
        for step in range(20):
            inputs = torch.sin(torch.arange(8.0).reshape(2, 4) + comm.rank + step)
            model(inputs).square().mean().backward()
            pace.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    exact, _ = run_ranks(2, lambda comm: train(comm, "none"))
    first, second = run_ranks(2, lambda comm: train(comm, "feedback(int8)"))
    assert torch.equal(first, second)
    assert not torch.equal(first, exact)
    assert torch.allclose(first, exact, atol=0.01)  # one part in 127 of gradients below 1, times lr


@pytest.mark.usefixtures("int8")
def test_the_member_that_newcomers_are_shown_declares_its_bytes():
    layout = Layout((Slot("weight", 100, (10, 10)), Slot("bias", 10, (10,))), itemsize=4, tail=2)
    chunk = Chunk(0, 0, layout.numel)
    assert compressors.MENU.make("int8").nbytes(layout, chunk) == 4 + 110 + 2 * 4


def test_the_table_of_files_to_touch_names_files_that_exist():
    named = re.findall(r"`((?:paceline|tests|docs)/[\w/.]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    paths = [path.replace("NAME.py", "__init__.py") for path in named if "int8" not in path]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_python_blocks_compile(path):
    for number, block in enumerate(blocks(path.read_text(), "python")):
        compile(block, f"{name(path)}, block {number + 1}", "exec")


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "CONTRIBUTING.md"], ids=name)
def test_pages_for_users_import_only_what_the_package_exports(path):
    for block in blocks(path.read_text(), "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "paceline":
                assert node.module in ("paceline", "paceline.integrations")
                exported = paceline if node.module == "paceline" else importlib.import_module(node.module)
                assert {alias.name for alias in node.names} <= set(exported.__all__)


@pytest.mark.parametrize("path", CONCEPTS, ids=name)
def test_a_concept_has_a_drawing_and_one_snippet_with_its_output(path):
    kinds = [kind for kind, _ in FENCE.findall(path.read_text())]
    assert kinds.count("") >= 1, "no drawing"
    assert kinds.count("python") == kinds.count("text") == 1


@pytest.mark.parametrize("path", [path for path in CONCEPTS if path.name not in WITH_PROCESSES], ids=name)
def test_a_concept_snippet_prints_what_the_page_says(path):
    text = path.read_text()
    assert run(blocks(text, "python")[0], name(path)) == blocks(text, "text")[0]


@pytest.mark.multi
@pytest.mark.usefixtures("forked_workers")
def test_the_record_page_reads_what_its_command_wrote(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = ROOT / "docs" / "concepts" / "record.md"
    text = path.read_text()
    [words] = commands(text)
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0, capsys.readouterr().err
    assert run(blocks(text, "python")[0], name(path)) == blocks(text, "text")[0]


@pytest.mark.multi
@pytest.mark.usefixtures("forks")
def test_the_window_page_prints_what_its_script_prints(tmp_path):
    text = (ROOT / "docs" / "concepts" / "window.md").read_text()
    (tmp_path / "star.py").write_text(blocks(text, "python")[0])
    done = forked.paceline("run", "-np", 4, "--", sys.executable, tmp_path / "star.py")
    assert done.stdout == blocks(text, "text")[0], done.stderr


@pytest.mark.multi
@pytest.mark.usefixtures("forks")
def test_the_script_of_library_calls_prints_what_the_page_says(tmp_path):
    text = (ROOT / "docs" / "howto" / "decentralized.md").read_text()
    [code] = blocks(text, "python")
    (tmp_path / "calls.py").write_text(code)
    [(line, _, output)] = [block.partition("\n") for block in blocks(text, "console") if "calls.py" in block]
    here = {"python": sys.executable, "calls.py": tmp_path / "calls.py"}
    done = forked.paceline(*(here.get(word, word) for word in shlex.split(line)[2:]))
    assert done.stdout == output, done.stderr


def test_every_concept_and_decision_is_in_its_index():
    for folder in ("concepts", "adr"):
        index = (ROOT / "docs" / folder / "README.md").read_text()
        pages = [path.name for path in (ROOT / "docs" / folder).glob("*.md") if path.name != "README.md"]
        assert [page for page in pages if f"({page})" not in index] == []


NAMED = re.compile(r"`(paceline/[\w/]+(?:\.py|/)?)`")


@pytest.mark.parametrize("page", ["structure.md", "concepts/README.md", "adr/0021-rooms.md"])
def test_files_that_a_page_names_exist(page):
    paths = NAMED.findall((ROOT / "docs" / page).read_text())
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_structure_page_lists_every_room_and_layer():
    text = (ROOT / "docs" / "structure.md").read_text()
    rooms = [path.name for path in (ROOT / "paceline").iterdir() if (path / "__init__.py").exists()]
    assert [room for room in rooms if not re.search(rf"^ .*\b{room}/", text, re.M)] == []
    layers = re.findall(r"^    (\w[\w |]*)", (ROOT / ".importlinter").read_text().partition("layers =")[2], re.M)
    drawn = blocks(text, "")[1].replace(".py", "").splitlines()
    assert [layer.strip() for layer in layers] == drawn


def test_classes_of_the_glossary_are_in_the_files_that_it_names():
    rows = re.findall(r"^\| (`\w+`.*?) \|.*\| `(paceline/\S+)` \|$", CLASSES.read_text(), re.M)
    assert rows
    missing = [
        name
        for names, path in rows
        for name in re.findall(r"`(\w+)`", names)
        if not re.search(rf"^(class )?{name}\b", (ROOT / path).read_text(), re.M)
    ]
    assert missing == []


def test_every_field_of_a_record_is_described():
    text = (ROOT / "docs" / "concepts" / "record.md").read_text()
    fields = [name.rstrip("_") for name in Record.model_fields]
    assert [name for name in fields if not re.search(rf"^\|[^|]*`{name}[`.]", text, re.M)] == []
