"""What the docs say can be followed: links lead somewhere, commands exist, code compiles and concept snippets run."""

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer

from paceline import schedules
from paceline.cli import app, main
from paceline.compose import compose
from paceline.record import Record
from paceline.run import Run
from paceline.types import Layout, Profile, Slot

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CONCEPTS = sorted((ROOT / "docs" / "concepts").glob("[!R]*.md"))
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


def test_the_member_that_newcomers_are_shown_works(monkeypatch):
    block = next(block for block in blocks((ROOT / "CONTRIBUTING.md").read_text(), "python") if "halves" in block)
    module = ModuleType("paceline.schedules.halves")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block, "CONTRIBUTING.md", "exec"), vars(module))
    monkeypatch.setitem(schedules.MENU.members, "halves", "paceline.schedules.halves:Halves")
    axes = compose(Run(workers=2, schedule="halves"))
    layout = Layout(tuple(Slot(str(k), 10) for k in range(4)), itemsize=4, tail=4)
    assert axes.schedule.plan(Profile(layout), lambda nbytes: nbytes).cuts == (0, 20, 44)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_python_blocks_compile(path):
    for number, block in enumerate(blocks(path.read_text(), "python")):
        compile(block, f"{name(path)}, block {number + 1}", "exec")


@pytest.mark.parametrize("path", CONCEPTS, ids=name)
def test_a_concept_has_a_drawing_and_one_snippet_with_its_output(path):
    kinds = [kind for kind, _ in FENCE.findall(path.read_text())]
    assert kinds.count("") >= 1, "no drawing"
    assert kinds.count("python") == kinds.count("text") == 1


@pytest.mark.parametrize("path", [path for path in CONCEPTS if path.name != "record.md"], ids=name)
def test_a_concept_snippet_prints_what_the_page_says(path):
    text = path.read_text()
    assert run(blocks(text, "python")[0], name(path)) == blocks(text, "text")[0]


@pytest.mark.multi
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
def test_the_script_of_library_calls_prints_what_the_page_says(tmp_path):
    text = (ROOT / "docs" / "howto" / "decentralized.md").read_text()
    [code] = blocks(text, "python")
    (tmp_path / "calls.py").write_text(code)
    [(line, _, output)] = [block.partition("\n") for block in blocks(text, "console") if "calls.py" in block]
    words = [sys.executable if word == "python" else word for word in shlex.split(line)[2:]]
    command = [sys.executable, "-m", "paceline", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.stdout == output, done.stderr


def test_every_concept_and_decision_is_in_its_index():
    for folder in ("concepts", "adr"):
        index = (ROOT / "docs" / folder / "README.md").read_text()
        pages = [path.name for path in (ROOT / "docs" / folder).glob("*.md") if path.name != "README.md"]
        assert [page for page in pages if f"({page})" not in index] == []


def test_every_field_of_a_record_is_described():
    text = (ROOT / "docs" / "concepts" / "record.md").read_text()
    fields = [name.rstrip("_") for name in Record.model_fields]
    assert [name for name in fields if not re.search(rf"^\|[^|]*`{name}[`.]", text, re.M)] == []
